"""The published suites, and what came of each of their cases on a store."""

import asyncio
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any, Final, Literal, NamedTuple
from uuid import uuid4

import semel
from semel.core.drive import leave

Outcome = Literal["passed", "differs", "failed", "absent"]

SWEEP: Final = (
    "A record of semel is absent as soon as its time is over, for every reader and every claim, and its "
    "store deletes it then or later by itself. So there is nothing to sweep, and no count of it."
)

# What a suite asks and semel does otherwise: it has to fail, and a test of ours shows what holds instead.
DIFFERS: Final = {
    ("justonce", "test_sweep_removes_terminal_records_past_their_retention"): SWEEP,
}


MARGIN: Final = (
    "DynamoDB has no clock to compare with, so a lapsed lease is taken over up to two seconds late unless "
    "the machine's own clock is trusted. Server and client are one machine here, and idemkit waits 0.15 s."
)

# What a store is set to for the suites, and why.
SETTINGS: Final = {"dynoxide": ("margin=0.05", MARGIN)}

STALE: Final = "It is listed as different, and passes."
THEIRS: Final = "its own"


class Result(NamedTuple):
    """What came of one case of a suite."""

    suite: str
    store: str
    case: str
    outcome: Outcome
    why: str = ""


Suite = Callable[[str, semel.Semel], Iterator[Result]]


def idemkit(store: str, s: semel.Semel) -> Iterator[Result]:
    """The vectors of `idemkit.conformance`, on a ledger."""
    from proof.rivals.idemkit_backend import SemelBackend

    async def run() -> list[Result]:
        try:
            return await vectors(store, SemelBackend(s.scoped(uuid4().hex)))
        finally:
            await leave(s.store)

    yield from asyncio.run(run())


async def vectors(store: str, backend: Any) -> list[Result]:
    """What idemkit's suite finds of a backend."""
    from idemkit.conformance import BackendConformance

    report = await BackendConformance(backend).run()
    return [judged("idemkit", store, found.vector_id, found.error) for found in report.results]


def justonce(store: str, s: semel.Semel) -> Iterator[Result]:
    """The cases of `justonce.conformance`, on a ledger."""
    from proof.rivals.justonce_store import SemelStore

    return cases(store, lambda: SemelStore(s.scoped(uuid4().hex)))


def cases(store: str, make_store: Callable[[], Any]) -> Iterator[Result]:
    """What justonce's suite finds of a store; each case has a new one."""
    from justonce.conformance import StoreConformanceTests

    suite = StoreConformanceTests()
    suite.make_store = make_store
    for name in [name for name in dir(suite) if name.startswith("test_")]:
        try:
            getattr(suite, name)()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the finding
            yield judged("justonce", store, name, f"{type(error).__name__}: {error}")
        else:
            yield judged("justonce", store, name, None)


def theirs() -> Iterator[Result]:
    """Each suite on a store of its own library, so that it is seen to run as it was meant."""
    from idemkit import InMemoryBackend
    from justonce.stores import SqliteStore

    yield from asyncio.run(vectors(THEIRS, InMemoryBackend()))
    # What semel does otherwise is none of theirs.
    for found in cases(THEIRS, SqliteStore):
        yield found._replace(outcome="passed", why="") if found.why == STALE else found


def judged(suite: str, store: str, case: str, error: str | None) -> Result:
    """A finding, beside what is known to differ."""
    reason = DIFFERS.get((suite, case))
    if reason is None:
        return Result(suite, store, case, "passed" if error is None else "failed", error or "")
    if error is None:
        return Result(suite, store, case, "failed", STALE)
    return Result(suite, store, case, "differs", reason)


SUITES: Final[dict[str, Suite]] = {"idemkit": idemkit, "justonce": justonce}


def name_of(suite: str) -> str:
    """A suite with the version of its library."""
    return f"{suite} {version(suite)}"
