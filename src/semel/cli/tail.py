"""`semel tail`: what operators do, and what comes into doubt and out of it, as it happens."""

import json
import time
from collections.abc import Iterator
from typing import Annotated

import msgspec
import typer

import semel
from semel import errors
from semel.cli import views
from semel.cli.common import JsonOption, StoreOptions, connected, on_a_store
from semel.cli.elsewhere import place_of
from semel.cli.look import pages, stuck_since, who_and_what
from semel.core.clock import SignalSafeEvent
from semel.ops.model import Search
from semel.state.journal import Entry

# So many of the last actions are shown at the beginning.
BEGIN_WITH = 10
# So many doubts are followed, since each is read at every look: the oldest.
MOST_DOUBTS = 500


class News(msgspec.Struct, frozen=True):
    """A line of what happened."""

    at: str
    kind: str
    """action, in doubt, or settled."""
    key: str
    text: str
    who: str = ""


@on_a_store()
def tail(
    *,
    every: Annotated[float, typer.Option(min=0.1, help="How many seconds there are between two looks.")] = 5,
    where: StoreOptions,
    as_json: JsonOption = False,
) -> None:
    """Follow what operators do, and what comes into doubt and out of it, until Ctrl-C.

    That is what a store can tell without a look at every record. How much is done is told by semel top, and
    each call by the logs of the programs.
    """
    with connected(where) as s:
        follower = Follower(s)
        typer.echo(f"Following {place_of(s)}.", err=True)
        try:
            while True:
                _look(follower, as_json)
                s.clock.wait(SignalSafeEvent(), every)
        except KeyboardInterrupt:
            return


def _look(follower: "Follower", as_json: bool) -> None:
    """Tell what is new; a store that is away is asked again at the next look."""
    try:
        for news in follower.news():
            typer.echo(_json_line(news) if as_json else _line(news))
    except errors.StoreError as error:
        typer.echo(f"semel: {error}", err=True)


def _line(news: News) -> str:
    who = f"{news.who} " if news.who else ""
    return f"{news.at}  {news.kind:8}  {news.key}  {who}{news.text}".rstrip()


def _json_line(news: News) -> str:
    return json.dumps(msgspec.to_builtins(news), ensure_ascii=False)


class Follower:
    """Knows what was told, and finds what is new."""

    def __init__(self, s: semel.Semel) -> None:
        self._s = s
        self._shown: set[str] = set()
        self._doubts: set[str] = set()
        self._begun = False
        # Ids are in the order of time. What is older than this was there before, and is not told.
        self._first = ""

    def news(self) -> Iterator[News]:
        """What has happened since this was last asked, actions first."""
        entries = self._new_entries() if self._begun else self._first_entries()
        for entry in reversed(entries):
            self._shown.add(str(entry.id))
            yield _action(entry)
        yield from self._changed_doubts()

    def _first_entries(self) -> list[Entry]:
        """The last entries at the beginning, newest first."""
        page = self._s.ops.journal(limit=BEGIN_WITH)
        self._begun = True
        if page.after is not None:
            self._first = str(page.entries[-1].id)
        return list(page.entries)

    def _new_entries(self) -> list[Entry]:
        """The entries that are not told yet, newest first."""
        found: list[Entry] = []
        after: str | None = None
        while True:
            page = self._s.ops.journal(limit=50, after=after)
            new = [entry for entry in page.entries if self._is_new(str(entry.id))]
            found += new
            after = page.after
            if after is None or len(new) < len(page.entries):
                return found

    def _is_new(self, id: str) -> bool:
        return id not in self._shown and id > self._first

    def _changed_doubts(self) -> Iterator[News]:
        records = {record.key: record for record in self._in_doubt()}
        new = [record for key, record in records.items() if key not in self._doubts]
        for record in sorted(new, key=stuck_since):
            self._doubts.add(record.key)
            yield News(views.moment(stuck_since(record)), "in doubt", record.key, who_and_what(record))
        for key in sorted(self._doubts - records.keys()):
            self._doubts.discard(key)
            yield self._settled(key)

    def _in_doubt(self) -> list[semel.Record]:
        found: list[semel.Record] = []
        for page in pages(self._s, Search(in_doubt=True)):
            found += page.records
            if len(found) >= MOST_DOUBTS:
                break
        return found[:MOST_DOUBTS]

    def _settled(self, key: str) -> News:
        record = self._s.ledger.get(key)
        if record is None:
            return News(views.moment(time.time()), "settled", key, "it is gone")
        return News(views.moment(record.updated_at), "settled", key, f"it is {record.status.value}")


def _action(entry: Entry) -> News:
    body = entry.body if isinstance(entry.body, dict) else {}
    text = f"{body.get('action', '')}: {body.get('why', '')}"
    at = views.moment_or_none(entry.at) or ""
    return News(at, "action", str(body.get("about", "")), text, str(entry.actor or ""))
