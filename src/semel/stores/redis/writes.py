"""Calls of write.lua: several writes in one slot, and the entries that lead to them from other slots."""

from collections.abc import Sequence

from semel.stores.redis.cluster import key_slot
from semel.stores.redis.indexes import KEPT, IndexEntry, keys_of
from semel.stores.redis.plan import NEVER, PlannedWrite
from semel.stores.redis.protocol import RedisCommand
from semel.stores.redis.scripts import ENCODER, WRITE, Binary, ScriptBatch, ScriptWrite, WriteSettings


def write_command(
    planned: Sequence[PlannedWrite],
    now: float | None,
    settings: WriteSettings,
    *,
    together: bool = False,
    late: float | None = None,
) -> RedisCommand:
    """Writes in one call of the script, and the entries that lie in their slot."""
    binary: Binary = []
    keys: list[bytes] = []
    writes = []
    for each in planned:
        keys += each.plan.keys(each.write)
        write = each.plan.arguments(each.write, binary)
        if each.entries:
            write.entered = True
            near = [entry for entry in each.entries if not _apart(entry, keys[0], settings)]
            write.entries = [(len(keys) + 1 + 3 * place, entry.member) for place, entry in enumerate(near)]
            keys += [key for entry in near for key in keys_of(entry.key)]
        if each.still is not None:
            write.still = each.still
            if each.still != NEVER and not each.entries:
                write.gone = (*write.gone, KEPT)  # no index leads to it any more
        writes.append(write)
    arguments = ENCODER.encode(ScriptBatch(writes, settings.publish, now, together, settings.confirm, late))
    return RedisCommand(keys[0], (b"%d" % len(keys), *keys, arguments, *binary), WRITE)


def index_commands(
    planned: Sequence[PlannedWrite], call: RedisCommand, now: float | None, settings: WriteSettings
) -> list[RedisCommand]:
    """The entries that lie in other slots than the writes they lead to, each in a call of its own."""
    commands = []
    for each in planned:
        expires = each.write.table.expires
        for entry in each.entries:
            if _apart(entry, call.key, settings):
                write = ScriptWrite("enter", expires, set={expires: each.end}, entries=[(1, entry.member)])
                arguments = ENCODER.encode(ScriptBatch([write], settings.publish, now))
                commands.append(RedisCommand(entry.key, (b"3", *keys_of(entry.key), arguments), WRITE))
    return commands


def _apart(entry: IndexEntry, key: bytes, settings: WriteSettings) -> bool:
    return settings.cluster and key_slot(entry.key) != key_slot(key)
