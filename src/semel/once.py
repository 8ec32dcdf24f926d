"""`once`: run a function at most once for a key, and return the same result to every caller."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping
from functools import partial
from types import FunctionType
from typing import TYPE_CHECKING, Any, Final, Generic, ParamSpec, TypeAlias, TypeVar, Unpack, cast, overload

import msgspec

from semel import errors
from semel.core.codecs import UNRESOLVED, decoder_for, returns_of
from semel.core.commands import Call, Raised, Returned, Steps
from semel.core.drive import adrive, drive
from semel.core.events import lasting_name, name_of
from semel.core.flow import Flow, FlowContext, Work
from semel.core.functions import annotations_of, check_function, signature_of
from semel.core.keys import (
    Key,
    check,
    compile_binder,
    compile_template,
    fingerprint,
    part,
    refuse_message_key,
    skeleton,
)
from semel.core.ledger import UNINTERRUPTED, LedgerSteps
from semel.core.policy import Options, Policy, Seconds, lease_and_ttl, policy_of
from semel.core.running import Run, current_run, subject_of_step
from semel.model import MISSING

if TYPE_CHECKING:
    from inspect import Signature

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

KeyMaker: TypeAlias = Callable[..., str]
PayloadNames: TypeAlias = "All | Iterable[str] | None"
WorkResult: TypeAlias = Returned | Raised


class All(msgspec.Struct, frozen=True):
    """The type of `ALL`."""


ALL: Final = All()
"""Every argument makes up the payload, but for self and cls."""

# A process has fewer functions that are steps; one that makes functions of texts has no end of them.
MOST_STEPS: Final = 256

# What a method's first parameter is called.
OBJECTS: Final = frozenset({"self", "cls"})


class Answer(msgspec.Struct, Generic[T], frozen=True):
    """What a call gave, and whether its function ran for it."""

    value: T
    ran: bool
    """False where the value is that of an earlier call, or `SKIPPED`."""


class Once:
    """`s.once`: the decorator, the `with` block, and a call under a key of the caller's choice."""

    def __init__(self, context: FlowContext) -> None:
        self._context = context
        self._templates: dict[str, str] = {}
        """Whose each template is, by the function's module and name."""
        self._steps: dict[tuple[Any, ...], Protected] = {}
        """How functions are called as steps, by what two functions have in common that are written alike."""

    def __repr__(self) -> str:
        return f"<Once on {self._context.store!r}>"

    def __call__(
        self,
        template: str | None = None,
        /,
        *,
        key: str | KeyMaker | None = None,
        fingerprint: PayloadNames = ALL,
        returns: Any = MISSING,
        shared: bool = False,
        **options: Unpack[Options],
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Protect a function: for equal keys it runs once, and every call gives the same answer.

        The key is a template over the function's arguments (`"charge:{order.id}"`), or with `key=` a function
        of the same arguments; without either it is the function's name and the hash of its payload.
        `fingerprint` names the arguments that make up the payload; None compares nothing. `returns` is the
        type of the result where the annotation does not say it. `shared` says that another function has the
        same keys on purpose.
        """
        if callable(template):
            raise errors.InvalidOption(
                f'once is called before it decorates: @s.once("{_suggested(template)}"); '
                "a function that makes keys is given by name, once(key=...)"
            )
        if template is not None and key is not None:
            raise errors.InvalidOption("a key is made by a template or by key=..., not by both")
        made_by = key if template is None else template
        policy = policy_of(options, self._context.ledger.horizon)

        def protect(function: Callable[P, R]) -> Callable[P, R]:
            protected = Protected(
                self._context, policy, function, made_by, payload=fingerprint, returns=returns
            )
            if isinstance(made_by, str) and not shared:
                self._reserve(made_by, function)
            return protected.wrapped()

        return protect

    def _reserve(self, template: str, function: Callable[..., Any]) -> None:
        """Refuse a template that is another function's: one of them would be given the other's results."""
        keys = skeleton(template)
        name = name_of(function)
        owner = self._templates.setdefault(keys, name)
        if owner != name:
            raise errors.InvalidOption(
                f"{name} has the same keys as {owner}, {template!r}, so that one would be given the other's "
                "results: give it a template of its own, or say shared=True where that is meant"
            )

    @overload
    def answer(  # type: ignore[overload-overlap]  # what is to be awaited is asked about first
        self, function: Callable[P, Coroutine[Any, Any, R]], /, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, Answer[R]]: ...

    @overload
    def answer(self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> Answer[R]: ...

    def answer(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a protected function, and learn whether it ran or was answered from the record.

        For an async function the answer is awaited, as its calls are.
        """
        protected = getattr(function, "__semel__", None)
        if not isinstance(protected, Protected):
            name = getattr(function, "__qualname__", repr(function))
            raise errors.UsageError(f"{name} is not protected by once, so there is no record to answer from")
        return protected.answer(_with_self(function, args), kwargs)

    def call(self, key: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a function once under this key: by its own policy if it has one, else by the defaults."""
        protected = getattr(function, "__semel__", None)
        if protected is None:
            protected = Protected(self._context, policy_of({}, self._context.ledger.horizon), function)
            return cast("R", protected.under(key, function, args, kwargs))
        return cast("R", protected.under(key, protected.function, _with_self(function, args), kwargs))

    def step(
        self, name: str | tuple[Any, ...], function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Run a function once as a step of the work that is running, under a key made from that one's.

        After a crash between two steps the work runs again, and neither step does. A plain function's steps
        are remembered as long as the work itself.
        """
        run = current_run()
        key = run.step(*(name if isinstance(name, tuple) else (name,)))
        if getattr(function, "__semel__", None) is not None:
            return self.call(key, function, *args, **kwargs)
        claim, options = run.claim, Options()
        if run.protected:
            # The work's own time to live has been held against its horizon already.
            options = {"lease": claim.lease, "ttl": claim.ttl, "horizon": claim.ttl}
        kind = (*options.values(), *_written_as(function))
        protected = self._steps.get(kind)
        if protected is None:
            policy = policy_of(options, self._context.ledger.horizon)
            protected = Protected(self._context, policy, function)
            if len(kind) > len(options) and len(self._steps) < MOST_STEPS:
                self._steps[kind] = protected.without_function()
        return cast("R", protected.under(key, function, args, kwargs))

    def running(
        self, *parts: Any, fingerprint: str | None = None, returns: Any = Any, **options: Unpack[Options]
    ) -> Running:
        """A block of work under a key made of these parts; `AlreadyDone` is raised where it is done."""
        return self.block(returns=returns, **options).running(Key(*parts), fingerprint)

    def about(self, name: str) -> Once:
        """This `once`, whose events are about this name: for blocks of work, since a function has its own."""
        return Once(self._context.about(name))

    def block(self, *, returns: Any = Any, **options: Unpack[Options]) -> Block:
        """Blocks of work that have their policy in common, which is checked here, once for all of them."""
        policy = policy_of(options, self._context.ledger.horizon)
        if policy.on_busy == "skip":
            raise errors.InvalidOption("a with block cannot be skipped: use on_busy='raise'")
        if policy.resolver is not None:
            raise errors.InvalidOption("a with block cannot be resolved: use on_lapsed='hold', or a function")
        return Block(Flow(self._context, policy, decoder_for(returns)))


class Protected:
    """A function under a policy."""

    def __init__(
        self,
        context: FlowContext,
        policy: Policy,
        function: Callable[..., Any],
        key: str | KeyMaker | None = None,
        *,
        payload: PayloadNames = ALL,
        returns: Any = MISSING,
    ) -> None:
        import inspect

        _check_function(function)
        signature = signature_of(function)
        context = context.about(name_of(function))
        self._flow = Flow(context, policy, decoder_for(Any))
        self.function: Callable[..., Any] = function
        self.is_async: bool = any(map(inspect.iscoroutinefunction, (function, type(function).__call__)))
        flow = self._flow
        self._call: Any = flow.arun if self.is_async else flow.run
        self._begin: Any = flow.aattempt if self.is_async else flow.attempt
        self.name: str = getattr(function, "__qualname__", repr(function))
        if inspect.iscoroutinefunction(policy.resolver) and not self.is_async:
            raise errors.InvalidOption(f"{self.name} is no async function, and its resolver is")
        self._name = context.ledger.name
        self._prefix = context.ledger.prefix
        self._bind = compile_binder(function)
        self._render = compile_template(key, signature) if isinstance(key, str) else None
        self._key_maker = None if isinstance(key, str) else key
        self._template = key if isinstance(key, str) else ""
        self._of_object = next(iter(signature.parameters), "") in OBJECTS
        self._subject = None if policy.subject is None else _namer(policy.subject, signature)
        self._hidden = policy.hide_key
        self._print = _printer(_payload_names(payload, signature), signature, context.secret)
        self._returns = returns
        self._typed = False
        if returns is not MISSING or returns_of(function) is not UNRESOLVED:
            self._learn_type()

    def __repr__(self) -> str:
        name = getattr(self.function, "__qualname__", repr(self.function))
        maker = getattr(self._key_maker, "__qualname__", repr(self._key_maker))
        key = (
            repr(self._template) if self._template else "its arguments" if self._key_maker is None else maker
        )
        return f"<{name}, once for {key}>"

    def wrapped(self) -> Callable[..., Any]:
        """The function as its callers know it."""
        bind, identify = self._bind, self._identify
        person = None if self._subject is None else self._person
        function, replay, run, begin = self.function, self._flow.replay, self._call, self._begin

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            id, fingerprint = identify(bind(*args, **kwargs), args, kwargs)
            before = replay(id, fingerprint)
            if before is not MISSING:
                return before
            work = Work(partial(begin, args, kwargs), function)
            done = run(work, id, fingerprint, person and person(args, kwargs))
            return done.value if type(done) is Returned else _given(done)

        @functools.wraps(function)
        async def acall(*args: Any, **kwargs: Any) -> Any:
            id, fingerprint = identify(bind(*args, **kwargs), args, kwargs)
            before = replay(id, fingerprint)
            if before is not MISSING:
                return before
            work = Work(partial(begin, args, kwargs), function)
            return _given(await run(work, id, fingerprint, person and person(args, kwargs)))

        wrapper: Any = acall if self.is_async else call
        wrapper.__semel__ = self
        return cast("Callable[..., Any]", wrapper)

    def without_function(self) -> Protected:
        """Forget the function, which may close over anything; `under` is given others that are like it."""
        if not self._typed:
            self._learn_type()
        self.function = _given
        return self

    def under(
        self, key: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Run a function once under this key: this one, or one that is written alike."""
        if not self._typed:
            self._learn_type()
        flow = self._flow
        id = self._name(_shown(refuse_message_key(key), flow.policy, flow.context.ledger))
        # Asked by the key itself: one that is hidden does not tell whose step it is.
        subject = self._person(args, kwargs) or subject_of_step(self._name(key))
        fingerprint = self._print(self._bind(*args, **kwargs))
        return self._run(id, fingerprint, subject, function, args, kwargs)

    def answer(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run once as any call does, and tell whether the function itself began."""
        id, fingerprint = self._identify(self._bind(*args, **kwargs), args, kwargs)
        ran = False

        def noted(*args: Any, **kwargs: Any) -> Any:
            nonlocal ran
            ran = True
            return self.function(*args, **kwargs)

        async def awaited(value: Awaitable[Any]) -> Answer[Any]:
            return Answer(await value, ran)

        given = self._run(id, fingerprint, self._person(args, kwargs), noted, args, kwargs)
        return awaited(given) if self.is_async else Answer(given, ran)

    def _run(
        self, id: str, fingerprint: str | None, subject: str | None, function: Any, *arguments: Any
    ) -> Any:
        done = self._call(Work(partial(self._begin, *arguments), function), id, fingerprint, subject)
        return _awaited(done) if self.is_async else _given(done)

    def _person(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """What stands for the person a call is about."""
        if self._subject is None:
            return None
        return self._flow.context.ledger.subject(self._subject(self._bind(*args, **kwargs)))

    def _identify(
        self, bound: dict[str, Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[str, str | None]:
        """The qualified name and the fingerprint, fixed before the function can change its arguments."""
        if self._render is not None:
            id = self._prefix + self._render(bound)  # a template's keys are checked as they are made
        elif self._key_maker is not None:
            id = self._name(refuse_message_key(self._key_maker(*args, **kwargs)))
        else:
            id = self._by_arguments(bound)
        if self._hidden:
            id = self._name(self._flow.context.ledger.subject(id.removeprefix(self._prefix)))
        if not self._typed:
            self._learn_type()
        return id, self._print(bound)

    def _by_arguments(self, bound: dict[str, Any]) -> str:
        """The qualified name of a call that neither a template nor a function names."""
        printed = self._print(bound)
        if printed is None or self._of_object:
            lacks = "compares no arguments" if printed is None else "is a method, and its object has no key"
            raise errors.InvalidKey(
                f"{self.name} {lacks}: give it a template, or call it with once.call(key, {self.name}, ...)"
            )
        return f"{self._prefix}{part(lasting_name(self.function))}:{printed}"

    def _learn_type(self) -> None:
        """Find the type of the result; an annotation may name a class that is defined after the function."""
        returns = returns_of(self.function) if self._returns is MISSING else self._returns
        if returns is UNRESOLVED:
            raise errors.InvalidOption(
                f"the return annotation of {self.name} names what does not exist: pass returns=..."
            )
        self._flow.promise(decoder_for(returns))
        self._typed = True


class Block:
    """Blocks of work under one policy, each with a key of its own."""

    def __init__(self, flow: Flow) -> None:
        self.flow = flow
        self.policy: Policy = flow.policy

    def lasting(self, lease: Seconds) -> Block:
        """These blocks with a lease that nothing renews, for work that is known to be over by then."""
        flow = self.flow
        held, _ = lease_and_ttl(lease, flow.policy.ttl)
        policy = msgspec.structs.replace(flow.policy, lease=held, heartbeat=False)
        return Block(Flow(flow.context, policy, flow.decoder))

    def running(self, key: str, fingerprint: str | None = None) -> Running:
        """`with block.running(key) as run`: one of them, as a `with` block."""
        self.identify(key)  # raises what is wrong with the key before the block begins
        return Running(self, key, fingerprint)

    def run(
        self,
        key: str,
        fingerprint: str | None,
        function: Callable[..., Any],
        *args: Any,
        subject: str | None = None,
    ) -> WorkResult:
        """One of them as a function, and what came of it: an error is given, and not raised.

        `Returned.record` is there where it was done before, and `Raised.begun` where the function has run.
        `subject` is whom it is about.
        """
        try:
            _, id, person = self.identify(key, subject)
            work = Work(partial(self.flow.attempt, args, {}), function)
            return self.flow.run(work, id, fingerprint, person)
        except errors.SemelError as error:
            return Raised(error, begun=False)

    async def arun(
        self,
        key: str,
        fingerprint: str | None,
        function: Callable[..., Any],
        *args: Any,
        subject: str | None = None,
    ) -> WorkResult:
        """One of them as an async function, and what came of it: an error is given, and not raised."""
        try:
            _, id, person = self.identify(key, subject)
            work = Work(partial(self.flow.aattempt, args, {}), function)
            return await self.flow.arun(work, id, fingerprint, person)
        except errors.SemelError as error:
            return Raised(error, begun=False)

    def shown(self, key: str) -> str:
        """A key as it is kept: hidden where the policy says so."""
        return self.identify(key)[0]

    def identify(self, key: str, subject: str | None = None) -> tuple[str, str, str | None]:
        """Return the key as it is stored, its qualified name, and the hash of its subject."""
        ledger = self.flow.context.ledger
        id, about = ledger.prefix + check(key), subject or self.policy.subject
        person = None if about is None else ledger.subject(about)
        if not self.policy.hide_key:
            return key, id, person
        # Looked up by the key itself: a hidden one does not say whose step it is.
        person = subject_of_step(id) if about is None else person
        shown = _shown(key, self.policy, ledger)
        return shown, ledger.prefix + shown, person


class Running:
    """A block of work: `with once.running(...) as run`, and `run.result` is its result.

    `claim` and `end` do the same for a caller that is no block, and return the ledger's errors. An
    interruption at any line withdraws the claim: so `claim`, `end` and `__exit__` begin with `try`.
    """

    run: Run
    is_open: bool = False
    """Whether the work has begun, and not ended."""
    _steps: Steps[WorkResult] | None = None

    def __init__(self, block: Block, key: str, fingerprint: str | None) -> None:
        self.block = block
        self.key = key
        self.fingerprint = fingerprint

    def claim(self) -> WorkResult | None:
        """Begin the work; or return the outcome of an earlier call, or the error that prevents it."""
        try:
            flow = self.block.flow
            _, id, subject = self.block.identify(self.key)
            self._steps = flow.steps(id, self.fingerprint, BLOCK, subject)
            step: Any = drive(self._steps, flow.context.store, flow.on_error, work=None)
            if type(step) is not Call:
                return step  # type: ignore[no-any-return]  # the steps are over
            self.run = step.work()
            flow.begin(self.run)
            self.is_open = True
        except BaseException as error:
            self._roll_back(error)
            if not isinstance(error, errors.SemelError):
                raise
            return Raised(error, begun=False)
        return None

    def end(self, error: BaseException | None) -> errors.SemelError | None:
        """End the work with its result or this error; return why the ledger could not store the result."""
        try:
            if not self.is_open or self._steps is None:
                return None
            self.is_open = False
            flow = self.block.flow
            flow.end(self.run)
            result = self.run.result
            reply = Returned(None if result is MISSING else result) if error is None else Raised(error)
            done = drive(self._steps, flow.context.store, flow.on_error, work=None, reply=reply)
        except BaseException as problem:
            self._roll_back(problem)
            if not isinstance(problem, errors.SemelError):
                raise
            return problem
        return None if error is not None else _problem(done)

    async def aclaim(self) -> WorkResult | None:
        """Begin async work; or return the outcome of an earlier call, or the error that prevents it."""
        flow = self.block.flow
        _, id, subject = self.block.identify(self.key)
        self._steps = flow.steps(id, self.fingerprint, BLOCK, subject)
        try:
            step: Any = await adrive(self._steps, flow.context.store, flow.on_error, work=None)
        except errors.SemelError as error:
            return Raised(error, begun=False)
        if type(step) is not Call:
            return step  # type: ignore[no-any-return]  # the steps are over
        self.run = step.work()
        flow.begin(self.run, in_loop=True)
        self.is_open = True
        return None

    async def aend(self, error: BaseException | None) -> errors.SemelError | None:
        """End async work with its result or this error; return why the ledger could not store the result."""
        if not self.is_open or self._steps is None:
            return None
        self.is_open = False
        flow, run = self.block.flow, self.run
        lost = flow.aend(run, error)
        failed, result = error if lost is None else lost, run.result
        reply = Returned(None if result is MISSING else result) if failed is None else Raised(failed)
        try:
            done = await adrive(self._steps, flow.context.store, flow.on_error, work=None, reply=reply)
        except errors.SemelError as problem:
            return problem
        if lost is not None:
            lost.__cause__ = error
            return lost
        return None if error is not None or type(done) is Returned else _problem(done)

    def __enter__(self) -> Run:
        if (done := self.claim()) is not None:
            raise self._already_done(done)
        return self.run

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            problem = self.end(error)
        except BaseException as interruption:
            self._roll_back(interruption)
            raise
        if problem is not None:
            raise problem

    async def __aenter__(self) -> Run:
        if (done := await self.aclaim()) is not None:
            raise self._already_done(done)
        return self.run

    async def __aexit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        if (problem := await self.aend(error)) is not None:
            raise problem

    def _roll_back(self, error: BaseException) -> None:
        """Release what was claimed, if an interruption came before the work or after it."""
        steps: Any = self._steps
        if steps is not None and steps.gi_frame is not None and not isinstance(error, UNINTERRUPTED):
            flow = self.block.flow
            drive(steps, flow.context.store, flow.on_error, work=None, failed=error)

    def _already_done(self, done: WorkResult) -> errors.AlreadyDone:
        value, record = _given(done), done.record  # type: ignore[union-attr]  # it is Returned
        return errors.AlreadyDone(record.key, value, record)


def _problem(done: WorkResult) -> errors.SemelError | None:
    """Return the ledger's error, if the work is done and its result could not be stored."""
    error = None if isinstance(done, Returned) else done.error
    if error is None or isinstance(error, errors.SemelError):
        return error
    raise error


def _with_self(function: Any, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of a protected function, with the object that a method is bound to in front."""
    me = getattr(function, "__self__", None)
    return args if me is None or not hasattr(function, "__semel__") else (me, *args)


def _written_as(function: Any) -> tuple[Any, ...]:
    """Return what functions have in common that are called alike as steps; nothing for an unusual function.

    Functions that are made again for each call share their code. What they close over differs, and so may
    defaults, and names in an annotation that is a text.
    """
    plain = getattr(function, "__func__", function)
    if type(plain) is not FunctionType or plain.__defaults__ or plain.__kwdefaults__ or plain.__dict__:
        return ()
    returns = annotations_of(plain).get("return")
    return (plain.__code__, plain is function, returns) if isinstance(returns, type | None) else ()


def _suggested(function: Any) -> str:
    """A template that could have been meant for a function."""
    name = getattr(function, "__name__", "work")
    try:
        fields = [f"{{{field}}}" for field in signature_of(function).parameters if field != "self"]
    except (TypeError, ValueError):
        fields = []
    return ":".join([name, *fields[:1]])


def _shown(key: str, policy: Policy, ledger: LedgerSteps) -> str:
    """A key as it is kept."""
    return ledger.subject(check(key)) if policy.hide_key else key


def _namer(template: str, signature: Signature) -> Callable[[Mapping[str, Any]], str]:
    """What makes of a call's arguments the person it is about.

    Of several fields a key is made. One alone is the person, whom `forget_subject` is given as he is.
    """
    render = compile_template(template, signature)
    alone = template.count("{") == 1 and template.startswith("{") and template.endswith("}")

    def person(bound: Mapping[str, Any]) -> str:
        try:
            name = render(bound)
        except errors.InvalidKey:
            # Without the text itself, which errors of keys show.
            raise errors.InvalidKey(f"subject={template!r} names nobody here: {NAMES}") from None
        return name.replace("%3A", ":").replace("%25", "%") if alone else name

    return person


NAMES = "a person is named by a text, of at most 1024 bytes and without control characters"


def _given(done: WorkResult) -> Any:
    if isinstance(done, Returned):
        return done.value
    raise done.error


def _block_begins(run: Run, *_: Any) -> Run:
    return run


BLOCK: Final = Work(_block_begins)
"""The work of a block, which the caller does: all that a driver can begin is its run."""


async def _awaited(done: Awaitable[WorkResult]) -> Any:
    return _given(await done)


def _check_function(function: Any) -> None:
    if isinstance(function, classmethod | staticmethod):
        raise errors.InvalidOption(
            f"put once() under @{type(function).__name__}, next to the function itself"
        )
    if not callable(function):
        raise errors.InvalidOption(f"once() protects functions, and {function!r} is none")
    check_function(function)


def _printer(
    names: tuple[str, ...] | None, signature: Signature, secret: bytes | None
) -> Callable[[dict[str, Any]], str | None]:
    """What makes a fingerprint of a call's arguments."""
    if names is None:
        return lambda _: None
    if names == tuple(signature.parameters) and secret is None:
        return fingerprint
    return lambda bound: fingerprint({name: bound[name] for name in names}, secret)


def _payload_names(payload: PayloadNames, signature: Signature) -> tuple[str, ...] | None:
    names = tuple(signature.parameters)
    if payload is None:
        return None
    if isinstance(payload, All):
        return names[1:] if names and names[0] in OBJECTS else names
    chosen = (payload,) if isinstance(payload, str) else tuple(payload)
    if unknown := set(chosen) - set(names):
        raise errors.InvalidOption(
            f"fingerprint names {', '.join(sorted(unknown))}; the parameters are {', '.join(names)}"
        )
    return chosen
