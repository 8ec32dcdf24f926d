"""Everything that semel can keep about a person, kept: through `def` and `async def`, by every way in."""

import functools

import pytest

from semel.gate import Cap
from semel.state.erasure import Erasure
from tests.state.conftest import Async

ANN, BOB = "ann.öberg@example.com", "bob@example.com"

KEPT = Erasure(records=8, documents=4, entries=3)
"""What `keep` keeps, as an erasure counts it."""


def either(do, function):
    """The function as callers of this way have it: a `def`, or an `async def`."""
    if not isinstance(do, Async):
        return function

    @functools.wraps(function)
    async def run(*args, **kwargs):
        value = function(*args, **kwargs)
        return await value if hasattr(value, "__await__") else value

    return run


def staged(do, function):
    """A function that yields what it waits for, as a `def` or an `async def`."""

    @functools.wraps(function)
    def sync(*args, **kwargs):
        stages, reply = function(*args, **kwargs), None
        try:
            while True:
                reply = stages.send(reply)
        except StopIteration as end:
            return end.value

    @functools.wraps(function)
    async def task(*args, **kwargs):
        stages, reply = function(*args, **kwargs), None
        try:
            while True:
                waited = stages.send(reply)
                reply = await waited if hasattr(waited, "__await__") else waited
        except StopIteration as end:
            return end.value

    return task if isinstance(do, Async) else sync


def protected(do, function, key=None, **options):
    """A function of `once`."""
    return do.s.once(key, **options)(either(do, function))


def block(do, *parts, result=None, **options):
    """A block of `once.running`."""

    def sync(s):
        with s.once.running(*parts, **options) as run:
            run.result = result

    async def task(s):
        async with s.once.running(*parts, **options) as run:
            run.result = result

    return do(task if isinstance(do, Async) else sync)


class Work:
    """Functions about a person, and which of them ran."""

    def __init__(self, do, said):
        self._do = do
        self._said = said
        self.runs = []
        self.event = protected(do, self._event, "event:{message}", subject="{customer}")
        self.fail = protected(do, self._fail, "fail:{message}", subject="{customer}", on_error="keep")
        self.retry = protected(do, self._fail, "retry:{message}", subject="{customer}")

    def _event(self, message, customer):
        self.runs.append("event")
        return self._do.s.once.step("reply", either(self._do, self._reply), customer)

    def _reply(self, customer):
        self.runs.append("reply")
        return {"to": self._said}

    def _fail(self, message, customer):
        self.runs.append("fail")
        raise LookupError(f"{self._said} is not known")

    def call(self, name, message, customer):
        return self._do(lambda _: getattr(self, name)(message, customer))


def gate_of(s):
    return s.gate(Cap("replies", 9))


def keep(do, name, person, said=None):
    """Keep something about the person in every way there is, and in it what he `said`: his name, if nothing.

    Keys call him by `name`.
    """
    said = said or person
    work, told = Work(do, said), {"said": said}
    work.call("event", name, person)
    for failing in ("fail", "retry"):
        with pytest.raises(LookupError):
            work.call(failing, name, person)
    block(do, "block", name, result=told, subject=person)
    claim = do(lambda s: s.ledger.claim(f"claim:{name}", fingerprint="f", subject=person))
    do(lambda s: s.ledger.complete(claim, told))
    do(lambda s: s.documents.put(f"put:{name}", told, subject=person))
    do(lambda s: s.documents.change(f"change:{name}", told, subject=person))
    do(lambda s: s.documents.update(f"update:{name}", lambda _: told, subject=person))
    do(lambda s: s.journal.append(name, told, subject=person))
    do(lambda s: s.journal.append(name, told, key=f"said:{name}", subject=person, actor=name))
    do(lambda s: gate_of(s).decide(f"send:{name}", subject=person))
    whole = do(lambda s: s.ledger.claim(f"whole:{name}", subject=person))

    def gather(tx):
        tx.ledger.complete(whole, told)
        tx.documents.put(f"tx:{name}", told, subject=person)
        tx.journal.append(name, told, subject=person)

    do.transact(gather)
    return work
