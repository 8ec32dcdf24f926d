"""Checks linearizability: whether some order explains what concurrent callers saw.

    history = History()
    with history.operation("worker-1", command) as answered:  # in many threads
        answered(store.execute(command))
    assert not check_items(history)

An operation takes effect at one moment between its beginning and its end. One whose answer was lost takes
effect at some moment after its beginning, or never. `check` looks for an order of such moments in which every
answer is the one that was given. It is Wing and Gong's search, with Lowe's remedy of never visiting a place
twice, for each key by itself. Thousands of operations take a second or two; but each lost answer doubles what
there is to try, and with dozens of them on one key a violation may take too long to prove.
"""

import threading
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import msgspec

from semel.core.commands import (
    Add,
    After,
    Applied,
    Delete,
    Found,
    Get,
    Item,
    Put,
    Refused,
    Update,
    Watch,
    Write,
    alive,
    allowed,
    outcome,
)
from semel.errors import StoreThrottled, StoreUnavailable, UsageError


class UnknownResult(msgspec.Struct, frozen=True):
    """The type of `UNKNOWN`: an answer that never came."""

    def __repr__(self) -> str:
        return "UNKNOWN"


UNKNOWN = UnknownResult()

# From a state, a call and its result: whether the call can give that result there, and the state after it.
# The result may be UNKNOWN, which every call can give. States are compared and hashed.
Transition: TypeAlias = Callable[[Any, Any, Any], tuple[bool, Any]]


class Operation(msgspec.Struct, frozen=True):
    """What somebody asked, what came of it, and when, in ticks of a counter that all share."""

    process: str | int
    call: Any
    begin: int
    end: int | None = None
    result: Any = UNKNOWN


class History:
    """The operations of many threads or tasks, as they begin and end."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._ticks = 0
        self._operations: list[Operation | None] = []

    @property
    def operations(self) -> list[Operation]:
        """All that have begun, in that order; the result of one that has not ended is unknown."""
        with self._lock:
            return [operation for operation in self._operations if operation is not None]

    def begin(self, process: str | int, call: Any) -> int:
        """Write down that a call is about to be made; the number is for `end`."""
        with self._lock:
            self._ticks += 1
            self._operations.append(Operation(process, call, self._ticks))
            return len(self._operations) - 1

    def end(self, number: int, result: Any) -> None:
        """Write down what came of it."""
        with self._lock:
            self._ticks += 1
            begun = self._operations[number]
            if begun is None or begun.end is not None:
                raise UsageError("this operation has ended already")
            self._operations[number] = Operation(begun.process, begun.call, begun.begin, self._ticks, result)

    def withdraw(self, number: int) -> None:
        """Write down that it certainly had no effect."""
        with self._lock:
            self._operations[number] = None

    @contextmanager
    def operation(self, process: str | int, call: Any) -> Iterator[Callable[[Any], None]]:
        """A call made in the block, which gives its result to the function; without one it stays unknown."""
        number = self.begin(process, call)
        try:
            yield lambda result: self.end(number, result)
        except (StoreUnavailable, StoreThrottled):  # which promise that nothing was written
            self.withdraw(number)
            raise


class Violation(msgspec.Struct, frozen=True):
    """No order explains the operations on this key.

    `placed` is the longest beginning of an order that was found, and none of `stuck` could come next.
    """

    key: Any
    state: Any
    placed: tuple[Operation, ...]
    stuck: tuple[Operation, ...]

    def __str__(self) -> str:
        lines = [f"no order explains the operations on {self.key!r}; after {len(self.placed)} of them"]
        lines += [f"    {_shown(operation)}" for operation in self.placed[-5:]]
        lines += [f"there was {self.state!r}, and none of these could come next:"]
        lines += [f"    {_shown(operation)}" for operation in self.stuck]
        return "\n".join(lines)


def _shown(operation: Operation) -> str:
    when = f"[{operation.begin}..{operation.end or ''}]"
    return f"{when} {operation.process}: {operation.call} -> {operation.result}"


def check(
    history: History | Iterable[Operation],
    step: Transition,
    initial: Any = None,
    *,
    key: Callable[[Any], Hashable] = lambda _: None,
    idle: Callable[[Any, Any], bool] = lambda _call, _result: False,
) -> list[Violation]:
    """The keys whose operations no order explains.

    `key` says of a call which one it is about. `idle` says of a call and its result that it changes no state
    that it is possible in, as a reading does not; where many are, the search is much shorter for knowing it.
    """
    operations = history.operations if isinstance(history, History) else history
    parts: dict[Hashable, list[Operation]] = defaultdict(list)
    for operation in operations:
        parts[key(operation.call)].append(operation)
    found = (_Search(part, step, idle).violation(each, initial) for each, part in parts.items())
    return [violation for violation in found if violation is not None]


class _Place(NamedTuple):
    """How far an order has got: the operations in it, as bits, and where they lead."""

    state: Any
    done: int = 0
    guessed: int = 0
    first: int = 0
    path: "tuple[Any, Operation] | None" = None


class _Search:
    """The search for an order of the operations on one key."""

    def __init__(
        self, operations: list[Operation], step: Transition, idle: Callable[[Any, Any], bool]
    ) -> None:
        ordered = sorted(operations, key=lambda operation: operation.begin)
        self._answered = [operation for operation in ordered if operation.end is not None]
        self._unknown = [operation for operation in ordered if operation.end is None]
        self._idle = [idle(operation.call, operation.result) for operation in self._answered]
        self._step = step
        self._steps: dict[tuple[Any, int], tuple[bool, Any]] = {}
        self._seen: dict[tuple[int, Any], list[int]] = {}

    def violation(self, key: Any, initial: Any) -> Violation | None:
        """What is wrong, or None when there is an order."""
        everything = (1 << len(self._answered)) - 1
        furthest = _Place(initial)
        places = [furthest]
        while places:
            place = self._past_idle(places.pop())
            if place.done == everything:
                return None
            if self._known(place):
                continue
            if place.done.bit_count() >= furthest.done.bit_count():
                furthest = place
            places.extend(self._onward(place))
        stuck = tuple(self._answered[number] for number in self._next(furthest)[0])
        return Violation(key, furthest.state, _path(furthest), stuck)

    def _next(self, place: _Place) -> tuple[list[int], float]:
        """The answered operations that may come next, and the first end among them."""
        numbers, horizon = [], float("inf")
        for number in range(place.first, len(self._answered)):
            if place.done >> number & 1:
                continue
            operation = self._answered[number]
            if operation.begin > horizon:
                break
            numbers.append(number)
            horizon = min(horizon, operation.end or horizon)
        return numbers, horizon

    def _past_idle(self, place: _Place) -> _Place:
        """The place after what may come next and never changes anything: to take it first is safe."""
        more = True
        while more:
            more = False
            for number in self._next(place)[0]:
                if self._idle[number] and self._result(place.state, number)[0]:
                    place, more = self._after(place, number, place.state), True
        return place

    def _onward(self, place: _Place) -> list[_Place]:
        """The places one step on, the likeliest last: operations end in about the order of their effects."""
        numbers, horizon = self._next(place)
        onward = list(self._guesses(place, horizon))
        for number in sorted(numbers, key=lambda number: self._answered[number].end or 0, reverse=True):
            possible, state = self._result(place.state, number)
            if possible and not self._idle[number]:
                onward.append(self._after(place, number, state))
        return onward

    def _guesses(self, place: _Place, horizon: float) -> Iterator[_Place]:
        """The places after an operation whose answer was lost; one that changes nothing here can wait."""
        for number, operation in enumerate(self._unknown):
            if operation.begin > horizon:
                return
            if not place.guessed >> number & 1:
                state = self._result(place.state, ~number)[1]
                if state != place.state:
                    guessed = place.guessed | 1 << number
                    yield place._replace(state=state, guessed=guessed, path=(place.path, operation))

    def _after(self, place: _Place, number: int, state: Any) -> _Place:
        done, first = place.done | 1 << number, place.first
        while done >> first & 1:
            first += 1
        return _Place(state, done, place.guessed, first, (place.path, self._answered[number]))

    def _result(self, state: Any, number: int) -> tuple[bool, Any]:
        known = self._steps.get((state, number))
        if known is None:
            operation = self._answered[number] if number >= 0 else self._unknown[~number]
            known = self._steps[state, number] = self._step(state, operation.call, operation.result)
        return known

    def _known(self, place: _Place) -> bool:
        """Whether the search was here before, with no fewer guesses left to make."""
        before = self._seen.setdefault((place.done, place.state), [])
        if any(guessed & place.guessed == guessed for guessed in before):
            return True
        before.append(place.guessed)
        return False


def _path(place: _Place) -> tuple[Operation, ...]:
    operations, path = [], place.path
    while path is not None:
        path, operation = path
        operations.append(operation)
    return tuple(reversed(operations))


# The model of an item: the reference semantics of `semel.core.commands`, in a moment that does not pass.

NOW = 0.0


class Snapshot:
    """An item at a moment. Moments that the store worked out are known to be there, and not when they are."""

    __slots__ = ("_comparable", "_hash", "item", "moments")

    def __init__(self, item: Item, moments: frozenset[str]) -> None:
        self.item: Item = item
        self.moments: frozenset[str] = moments
        self._comparable = _comparable(item, moments)
        self._hash = hash(self._comparable)

    def looks_like(self, item: Item | None) -> bool:
        """Whether this is what a store showed."""
        return item is not None and _comparable(item, self.moments) == self._comparable

    def __eq__(self, other: object) -> bool:
        if self is other or not isinstance(other, Snapshot):
            return self is other
        return self.item == other.item and self.moments == other.moments

    def __hash__(self) -> int:
        return self._hash

    def __repr__(self) -> str:
        return f"Snapshot({self.item!r})"


def check_items(history: History | Iterable[Operation]) -> list[Violation]:
    """The items whose history no order explains; the calls are commands on single items, from none on.

    Time stands still in the model: leases and lives have to be longer than the history took.
    """
    return check(history, item_step, key=_place, idle=lambda _, reply: isinstance(reply, Found | Refused))


def _place(command: Any) -> tuple[str, str, Any]:
    return command.table.name, command.key, command.sort


def item_step(state: Snapshot | None, command: Any, reply: Any) -> tuple[bool, Snapshot | None]:
    """What `semel.core.commands` says of a command on an item; None is an item that is not there."""
    if isinstance(command, Get | Watch):
        return reply is UNKNOWN or (isinstance(reply, Found) and _shows(state, reply.item)), state
    if not isinstance(command, Put | Update | Add | Delete):
        raise UsageError(f"{type(command).__name__} is not a command on one item")
    item = None if state is None else state.item
    if not allowed(command, item):
        return reply is UNKNOWN or (isinstance(reply, Refused) and _shows(state, reply.item)), state
    after = _written(command, state)
    if reply is UNKNOWN:
        return True, after
    return isinstance(reply, Applied) and (type(command) is not Add or _shows(after, reply.item)), after


def _shows(state: Snapshot | None, item: Item | None) -> bool:
    return item is None if state is None else state.looks_like(item)


def _written(command: Write, state: Snapshot | None) -> Snapshot | None:
    """What an allowed write leaves; the very same state where it changes nothing."""
    before = None if state is None else state.item
    after = alive(command.table, outcome(command, before, NOW), NOW)
    if after is None:
        return None
    written = Snapshot(after, _moments(command, state))
    return state if written == state else written


def _moments(command: Write, state: Snapshot | None) -> frozenset[str]:
    """The attributes that hold a moment of the store's after this write."""
    kept = frozenset() if state is None or isinstance(command, Put) else state.moments
    written = command.item if isinstance(command, Put) else getattr(command, "set", {})
    if isinstance(command, Add) and state is not None:  # an item that exists keeps its end
        written = {name: value for name, value in written.items() if name != command.table.expires}
    return kept.difference(written).union(name for name, value in written.items() if type(value) is After)


def _comparable(item: Item, moments: frozenset[str]) -> frozenset[tuple[str, Any]]:
    """What of an item can be compared: an attribute without a value, or without an end, is not there."""
    return frozenset(
        (name, None if name in moments else _hashable(value))
        for name, value in item.items()
        if value not in (None, set(), float("inf"))
    )


def _hashable(value: Any) -> Any:
    if isinstance(value, dict):
        return frozenset((name, _hashable(each)) for name, each in value.items())
    if isinstance(value, list):
        return tuple(map(_hashable, value))
    return frozenset(value) if isinstance(value, set) else value
