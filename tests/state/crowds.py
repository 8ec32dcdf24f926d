"""Several workers on one place, many callers at once, and places with tables of the seeds."""

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager

from semel.aws.wire import Wire
from semel.core.commands import Query, Transact
from semel.errors import StoreOutcomeUnknown, StoreUnavailable
from semel.tables import OWN
from semel.testing import FakeClock, Faulty
from tests.places import open_place
from tests.state.conftest import SECRET

TROUBLES = (StoreUnavailable, StoreOutcomeUnknown)
ENGINES = ("dynoxide", "ministack")


def senders(place):
    """How many want to send at once; ministack, which is slow, shows the same with fewer."""
    return 60 if place.name == "ministack" else 200


@contextmanager
def opened(way, store, place, **options):
    """A `do` on a store of the test's own."""
    ours = {"env": place.env, "scope": getattr(place, "scope", ""), "secret": SECRET}
    do = way(store, **ours | options)
    try:
        yield do
    finally:
        do.close()


@contextmanager
def workers(place, way, many, *, clock=None, stores=None):
    """A `do` for each of several workers, as many as may be open at once there."""
    if stores is None:
        stores = [place.open(clock) for _ in range(place.workers(many))]
    options = {} if clock is None else {"clock": clock}
    with ExitStack() as stack:
        yield [stack.enter_context(opened(way, store, place, **options)) for store in stores]


def crowd(ways, functions):
    """What becomes of these, all at once and shared out among workers; in no promised order."""
    shares = [functions[place :: len(ways)] for place in range(len(ways))]
    with ThreadPoolExecutor(len(ways)) as pool:
        told = pool.map(lambda way, share: way.together(share), ways, shares)
        return [one for share in told for one in share]


def persistent(way, work):
    """The work of a caller who does again what failed, or may have: a generator of calls, as one function."""

    def sync(s):
        return _driven(work(s))

    async def task(s):
        return await _adriven(work(s))

    return sync if way.__name__ == "Sync" else task


def _driven(steps):
    reply = None
    try:
        while True:
            call = steps.send(reply)
            while True:
                try:
                    reply = call()
                    break
                except TROUBLES:
                    continue
    except StopIteration as end:
        return end.value


async def _adriven(steps):
    reply = None
    try:
        while True:
            call = steps.send(reply)
            while True:
                try:
                    reply = await call()
                    break
                except TROUBLES:
                    continue
    except StopIteration as end:
        return end.value


def everything(do):
    """All that there is in the scope of a `do`."""
    s = do.s
    prefix = s.ledger.steps.prefix
    queries = [Query(table, prefix=prefix, limit=1000) for table in OWN]
    return [item for query in queries for item in s.store.execute(query).items]


@contextmanager
def furnished(request, way, folder, *tables):
    """The place that a fixture names, with these tables of the seeds too; what is done there; its clock."""
    place, clock = open_place(request.param, request, folder, more=tables), FakeClock()
    with opened(way, Faulty(place.open(clock)), place, clock=clock) as do:
        yield place, do, clock


def asked(place, operation, **request):
    """What an engine of DynamoDB answers, as it stands."""
    with closing(Wire("dynamodb", region="us-east-1", endpoint=place.server)) as wire:
        return wire.call(operation, request, write=False)


def raw(place, title, **key):
    """What a table of DynamoDB has in it, as it stands there."""
    items = asked(place, "Scan", TableName=title, ConsistentRead=True)["Items"]
    return [item for item in items if all(item.get(name) == value for name, value in key.items())]


class Meddled(Faulty):
    """A store in which something happens after the first transaction, whose answer is then lost."""

    def __init__(self, store, meddle):
        super().__init__(store)
        self.meddle = meddle

    def at_once(self, command):
        return None

    def execute(self, command):
        return self._lose(command, super().execute(command))

    async def aexecute(self, command):
        return self._lose(command, await super().aexecute(command))

    def _lose(self, command, reply):
        if isinstance(command, Transact) and self.meddle is not None:
            meddle, self.meddle = self.meddle, None
            meddle()
            raise StoreOutcomeUnknown("the connection broke")
        return reply
