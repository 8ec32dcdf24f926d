"""A ledger is written to a file, and read from there into every other store."""

import json
import stat

import pytest

import semel
from semel.core.codecs import Encryption
from semel.core.commands import ANY, write
from semel.core.drive import drive
from semel.ops import transfer
from semel.ops.transfer import Imported, export_to, import_from
from semel.tables import LEDGER, OWN
from semel.testing import FakeClock, Faulty
from tests.ops.moving import MOVED, fill, items_of


@pytest.fixture
def filled(open_one, env):
    """A ledger in memory with something of everything, in two scopes, and in another environment too."""
    store = open_one("memory")
    for each in (env, f"{env}-other"):
        s = semel.Semel(store, env=each, secret=b"s" * 32)
        fill(s)
        fill(s.scoped("tenant"))
    return store


@pytest.mark.parametrize("name", MOVED)
def test_what_is_exported_from_one_store_and_imported_into_another_is_the_same(
    name, open_one, env, filled, tmp_path
):
    before = items_of(filled, env)
    assert {place[0].name for place in before} == {table.name for table in OWN}
    exported = export_to(tmp_path / "first", filled, env)
    assert exported.items == len(before)
    store = open_one(name)
    assert import_from(tmp_path / "first", store, env) == Imported(written=len(before))
    assert items_of(store, env) == before
    assert items_of(store, f"{env}-other") == {}
    # And back: from that store into a file, and from there into memory.
    export_to(tmp_path / "second", store, env)
    again = open_one("memory")
    import_from(tmp_path / "second", again, env)
    assert items_of(again, env) == before


@pytest.mark.parametrize("name", MOVED)
def test_a_ledger_goes_on_where_it_was(name, open_one, env, filled, tmp_path):
    export_to(tmp_path / "file", filled, env)
    store = open_one(name)
    import_from(tmp_path / "file", store, env)
    s = semel.Semel(store, env=env, secret=b"s" * 32)
    assert s.ledger.claim("done", fingerprint="f").result == {"cents": 4200, "text": "é\n☃"}
    assert s.ledger.claim("packed").result == "x" * 20_000
    assert isinstance(s.ledger.claim("running"), semel.Busy)
    assert isinstance(s.ledger.claim("unknown"), semel.Unknown)
    assert isinstance(s.ledger.claim("failed"), semel.Failed)
    assert s.ledger.claim("released").attempt == 3
    assert s.ledger.check_and_set("seen") is False
    assert s.documents.get("doc").version == 2
    assert s.counters.charge("calls", 3, cap=10, token="t-1").by == 3
    assert s.counters.look("calls").used == 3
    assert [record.key for record in s.ledger.doubts().records] == ["unknown"]
    assert s.mailbox("in").survey().waiting == 3
    assert s.switches.list()["sending"].on
    assert s.forget_subject("ann").documents == 1


def test_what_is_there_is_left_alone_unless_it_is_to_be_replaced(open_one, env, filled, tmp_path):
    export_to(tmp_path / "file", filled, env)
    before = items_of(filled, env)
    store = open_one("memory")
    semel.Semel(store, env=env).documents.put("doc", {"own": 1})
    done = import_from(tmp_path / "file", store, env)
    assert done == Imported(written=len(before) - 1, there=1)
    assert semel.Semel(store, env=env).documents.get("doc").value == {"own": 1}
    assert import_from(tmp_path / "file", store, env) == Imported(there=len(before))
    assert import_from(tmp_path / "file", store, env, replace=True).written == len(before)
    assert items_of(store, env) == before


def test_after_a_crash_the_same_call_goes_on(open_one, env, filled, tmp_path, monkeypatch):
    monkeypatch.setattr(transfer, "PAGE", 5)
    export_to(tmp_path / "file", filled, env)
    store = Faulty(open_one("memory"))
    count = 0

    def crash(_done):
        nonlocal count
        count += 1
        if count == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        import_from(tmp_path / "file", store, env, on_progress=crash)
    store.lose_reply()
    done = import_from(tmp_path / "file", store, env)
    assert (done.there >= 15, done.refused) == (True, ())
    assert items_of(store, env) == items_of(filled, env)


def test_what_has_expired_is_left_out_of_the_file_and_of_the_store(open_one, env, tmp_path):
    clock = FakeClock()
    store, other = open_one("memory", clock), open_one("sqlite", clock)
    ledger = semel.Semel(store, env=env, clock=clock).ledger
    ledger.mark_processed("short", ttl=10)
    clock.advance(11)
    ledger.mark_processed("longer", ttl=20)
    ledger.mark_processed("longest", ttl=60)
    assert export_to(tmp_path / "file", store, env).items == 2
    clock.advance(30)
    assert import_from(tmp_path / "file", other, env) == Imported(written=1, expired=1)


def test_what_is_encrypted_stays_so_and_can_be_read_at_its_new_place(open_one, env, tmp_path):
    store, other = open_one("memory"), open_one("sqlite")
    options = {"env": env, "secret": b"s" * 32, "encryption": Encryption({"k": b"k" * 32}, "k")}
    fill(semel.Semel(store, **options))
    export_to(tmp_path / "file", store, env)
    text = (tmp_path / "file").read_text()
    assert not [word for word in ("4200", "no such card", "that", "wrong prices", "deep") if word in text]
    import_from(tmp_path / "file", other, env)
    s = semel.Semel(other, **options)
    assert s.ledger.claim("done", fingerprint="f").result["cents"] == 4200
    assert s.documents.get("doc").value["more"] == {"deep": []}
    assert s.ledger.get("failed").failure.message == "no such card"


def test_only_its_owner_may_read_the_file_and_none_is_written_over(open_one, env, filled, tmp_path):
    path = tmp_path / "file"
    export_to(path, filled, env)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    before = path.read_bytes()
    with pytest.raises(semel.errors.InvalidOption, match="is there already"):
        export_to(path, filled, env)
    assert path.read_bytes() == before
    with pytest.raises(KeyboardInterrupt):
        export_to(tmp_path / "torn", filled, env, on_progress=_interrupt)
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def _interrupt(_done):
    raise KeyboardInterrupt


BAD = {
    "no JSON": b"{",
    "a table": b'{"table":"shelf","item":{}}',
    "an attribute": b'{"table":"ledger","item":{"id":"ENV//x","colour":"red"}}',
    "a number": b'{"table":"ledger","item":{"id":"ENV//x","attempt":"1"}}',
    "base64": b'{"table":"ledger","item":{"id":"ENV//x","result":"?"}}',
    "its sort key": b'{"table":"journal","item":{"owner":"ENV//x","expires_at":9e9}}',
    "its end": b'{"table":"documents","item":{"id":"ENV//x"}}',
    "another environment": b'{"table":"ledger","item":{"id":"ENV-other//x"}}',
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_a_bad_line_is_refused_by_its_number_before_anything_is_written(bad, open_one, env, filled, tmp_path):
    path = tmp_path / "file"
    export_to(path, filled, env)
    lines = path.read_bytes().splitlines()
    lines[7] = bad.replace(b"ENV", env.encode())
    path.write_bytes(b"\n".join(lines) + b"\n")
    store = open_one("memory")
    with pytest.raises(semel.errors.UsageError, match=r"cannot be imported: line 8: "):
        import_from(path, store, env)
    assert items_of(store, env) == {}


def test_a_file_that_is_torn_off_or_of_another_environment_is_refused(open_one, env, filled, tmp_path):
    path = tmp_path / "file"
    export_to(path, filled, env)
    store = open_one("memory")
    with pytest.raises(semel.errors.UsageError, match="of environment"):
        import_from(path, store, "another")
    whole = path.read_bytes().splitlines(keepends=True)
    for torn in (whole[:-1], whole[:-2] + whole[-1:], [*whole, whole[5]], whole[1:], []):
        path.write_bytes(b"".join(torn))
        with pytest.raises(semel.errors.UsageError):
            import_from(path, store, env)
    with pytest.raises(semel.errors.UsageError, match="No such file"):
        import_from(tmp_path / "nowhere", store, env)
    assert items_of(store, env) == {}


def test_what_a_store_has_no_room_for_is_named_and_the_rest_goes_in(open_one, env, tmp_path):
    store, other = open_one("memory"), open_one("dynoxide")
    s = semel.Semel(store, env=env)
    s.documents.put("small", {"n": 1})
    s.documents.put("large", {"text": "x" * 500_000})
    export_to(tmp_path / "file", store, env)
    done = import_from(tmp_path / "file", other, env)
    assert done.written + done.there == 1
    assert [each.partition(":")[0] for each in done.refused] == [f"documents {env}//large"]


def test_a_record_that_nobody_can_read_is_moved_as_it_is(open_one, env, tmp_path):
    store, other = open_one("sqlite"), open_one("memory")
    item = {"status": "BROKEN", "token": "t", "expires_at": 9e9}
    drive(write(transfer.putting(LEDGER, item | {"id": f"{env}//odd"}, ANY)), store)
    export_to(tmp_path / "file", store, env)
    import_from(tmp_path / "file", other, env)
    with pytest.raises(semel.errors.RecordCorrupt):
        semel.Semel(other, env=env).ledger.claim("odd")


# The command line


@pytest.fixture
def urls(tmp_path):
    """An SQLite file with a ledger in it, and another with none."""
    old, new = (f"sqlite:///{tmp_path / name}.db" for name in ("old", "new"))
    with semel.connect(old, env="prod", secret=b"s" * 32) as s:
        fill(s)
    semel.connect(new, env="prod").close()
    return old, new


def test_a_ledger_is_moved_by_two_commands(typed, urls, tmp_path):
    old, new = urls
    file = str(tmp_path / "prod.jsonl")
    code, out, _ = typed("export", file, "--url", old, "--env", "prod")
    assert (code, out.startswith(f"Exported to {file}: 20 items (ledger 8, ")) == (0, True), out
    code, out, _ = typed("import", file, "--url", new, "--env", "prod", "--json")
    assert (code, json.loads(out)) == (0, {"written": 20, "there": 0, "expired": 0, "refused": []})
    code, out, _ = typed("import", file, "--url", new, "--env", "prod")
    assert (code, out) == (0, f"Imported from {file}: 0 items written, 20 there already.\n")
    code, _, err = typed("import", file, "--url", new, "--env", "dev")
    assert code != 0
    assert "environment" in err


def test_a_table_of_another_layout_is_not_moved(typed):
    code, _, err = typed("export", "file", "--url", "dynamodb://us-east-1?layout=powertools")
    assert (code, "not of semel's own layout" in err) == (2, True), err
