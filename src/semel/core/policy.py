"""The options of protected work and its durations, checked and turned into a policy."""

from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any, Literal, TypeAlias, TypedDict, get_args

import msgspec

from semel import errors
from semel.model import OnBusy, OnLapsed, OnStoreError

Seconds: TypeAlias = float | timedelta

INFINITE = float("inf")

LEASE = 30.0
DAY = 86400.0
"""A day in seconds: how long a result is kept unless you say otherwise."""
HOUR = 3600.0
"""An hour in seconds: enough for a result where events are frequent and their retries quick."""
# What somebody has settled or put right is kept for so long at least: forgotten early, it would happen again.
SETTLED = 30 * DAY


def seconds(span: Seconds) -> float:
    """A span of time as seconds; it must be more than none."""
    if type(span) is float and 0 < span < INFINITE:  # as nearly every one
        return span
    value = span.total_seconds() if isinstance(span, timedelta) else span
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < INFINITE:
        raise errors.InvalidOption(f"a span of time must be positive and finite, not {span!r}")
    return float(value)


def lease_and_ttl(lease: Seconds, ttl: Seconds, horizon: float = 0) -> tuple[float, float]:
    """A lease and a time to live that fit together."""
    held, kept = seconds(lease), lasting(ttl, horizon)
    if kept <= held:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) must be longer than lease ({held:g} s): a record outlives its lease"
        )
    return held, kept


def lasting(ttl: Seconds, horizon: float) -> float:
    """A time to live that is no shorter than the other side goes on retrying."""
    kept = seconds(ttl)
    if kept < horizon:
        raise errors.InvalidOption(
            f"ttl ({kept:g} s) is shorter than horizon ({horizon:g} s), for which the other side retries: "
            f"its last retries would run again. Use a ttl of at least {horizon:g}"
        )
    return kept


Keep: TypeAlias = Literal["keep", "release", "doubt"]
OnError: TypeAlias = Keep | Mapping[type[Exception], Keep]


class ClaimTerms(msgspec.Struct, frozen=True):
    """The terms on which a key is claimed."""

    lease: float
    ttl: float
    on_lapsed: OnLapsed = "rerun"
    max_attempts: int | None = None
    doubt_ttl: float | None = None
    """How long an unresolved record waits for an operator; None for ever."""


def terms_of(
    lease: Seconds,
    ttl: Seconds,
    on_lapsed: OnLapsed,
    max_attempts: int | None,
    doubt_ttl: Seconds | None,
    *,
    horizon: float,
) -> ClaimTerms:
    """Check the terms of a claim."""
    check_word("on_lapsed", on_lapsed, OnLapsed)
    check_limit("max_attempts", max_attempts)
    held, kept = lease_and_ttl(lease, ttl, horizon)
    waits = None if doubt_ttl is None else lasting(doubt_ttl, horizon)
    if waits is not None and on_lapsed == "rerun":
        raise errors.InvalidOption(
            'doubt_ttl goes with on_lapsed="hold" or "resolve": else nothing is in doubt'
        )
    if waits is not None and waits <= held:
        raise errors.InvalidOption(
            f"doubt_ttl ({waits:g} s) must be longer than lease ({held:g} s), at whose end a doubt begins"
        )
    return ClaimTerms(held, kept, on_lapsed, max_attempts, waits)


class Policy(ClaimTerms, frozen=True, kw_only=True):
    """What to do in each situation, in words."""

    on_busy: OnBusy = "wait"
    patience: float
    resolver: Callable[..., Any] | None = None
    on_error: dict[type[Exception], Keep]
    on_store_error: OnStoreError = "closed"
    heartbeat: bool = True
    subject: str | None = None
    hide_key: bool = False

    def fate_of(self, error: BaseException, attempt: int) -> tuple[Keep, str]:
        """What becomes of work that raised this at that attempt, and under which type's name it is kept."""
        kind: Any = next((kind for kind in type(error).__mro__ if kind in self.on_error), None)
        word = self.on_error.get(kind, "release")
        # Work that never ran has not failed: a corrected function may still do it.
        if word == "keep" and not isinstance(error, errors.LazyResult):
            return word, f"{kind.__module__}.{kind.__qualname__}"
        spent = self.max_attempts is not None and attempt >= self.max_attempts
        return word if word == "doubt" else "keep" if spent else "release", ""

    def kind_of(self, kept_as: str) -> type[Exception] | None:
        """The type that was named so when an error was kept, though it may have moved to another module."""
        kinds = [kind for kind, word in self.on_error.items() if word == "keep"]
        same = [kind for kind in kinds if f"{kind.__module__}.{kind.__qualname__}" == kept_as]
        moved = [kind for kind in kinds if f".{kept_as}".endswith(f".{kind.__qualname__}")]
        return same[0] if same else moved[0] if len(moved) == 1 else None


class Options(TypedDict, total=False):
    """What can be said about a protected piece of work; `Policy` and `policy_of` have the defaults."""

    lease: Seconds
    """How long an attempt may be silent before it is taken for dead. 30 seconds; renewed while work runs."""
    ttl: Seconds
    """How long the result is remembered. A day, or as long as the horizon where that is longer."""
    horizon: Seconds
    """How long the other side goes on retrying: a `ttl` shorter than that is refused. The ledger's own."""
    on_busy: OnBusy
    """When another attempt is at work: wait for its answer (the default), raise `InProgress`, or skip."""
    wait: Seconds
    """How long to wait for it before raising `InProgress`. 30 seconds."""
    on_lapsed: OnLapsed
    """When an attempt vanished: rerun (the default), hold it for somebody to settle, or resolve."""
    resolver: Callable[..., Any] | None
    """Asks the other side what became of a vanished attempt; takes the function's own arguments."""
    on_error: OnError
    """By exception type: keep it and raise it again, release it for a retry (the default), or doubt whether
    the effect happened, so that `on_lapsed` decides at once."""
    on_store_error: OnStoreError
    """When the store is down: closed, so nothing runs (the default), or open, so it runs unprotected."""
    max_attempts: int | None
    """After so many attempts it is failed for good. No limit."""
    doubt_ttl: Seconds | None
    """How long what is held, or cannot be resolved, waits for somebody to settle it. For ever."""
    heartbeat: bool
    """Renew the lease while the work runs. Yes."""
    subject: str | None
    """Whom it is about, as a template like the key's: `forget_subject` finds it by that. Nobody."""
    hide_key: bool
    """Keep a keyed hash in place of the key, where that holds personal data. No."""


def check_word(option: str, word: Any, words: Any) -> None:
    """Refuse a word that is not one of those an option knows."""
    if word not in get_args(words):
        raise errors.InvalidOption(f"{option}={word!r}: it is one of {', '.join(get_args(words))}")


def check_limit(option: str, limit: int | None) -> None:
    """Refuse a limit that would allow nothing at all."""
    if limit is not None and limit < 1:
        raise errors.InvalidOption(f"{option} must be at least 1, not {limit}")


UNSAID: dict[str, Any] = {"lease": LEASE, "on_lapsed": "rerun", "max_attempts": None, "doubt_ttl": None}


def policy_of(options: Options, horizon: float = 0) -> Policy:
    """Options as a policy, every one checked; `horizon` is the ledger's, where the options have none."""
    if unknown := options.keys() - Options.__annotations__.keys():
        raise errors.InvalidOption(f"there is no option {', '.join(sorted(unknown))}")
    if "horizon" in options:
        horizon = seconds(options["horizon"])
    given: dict[str, Any] = (
        {"ttl": max(DAY, horizon), "wait": LEASE, "on_error": "release"} | UNSAID | options
    )
    terms = terms_of(*[given[name] for name in ClaimTerms.__struct_fields__], horizon=horizon)
    given |= msgspec.structs.asdict(terms) | {"on_error": _by_type(given["on_error"])}
    given.pop("horizon", None)
    policy = Policy(patience=seconds(given.pop("wait")), **given)
    check_word("on_busy", policy.on_busy, OnBusy)
    check_word("on_store_error", policy.on_store_error, OnStoreError)
    if (policy.on_lapsed == "resolve") != (policy.resolver is not None):
        raise errors.InvalidOption('on_lapsed="resolve" and resolver=... go together')
    return policy


def _by_type(on_error: OnError) -> dict[type[Exception], Keep]:
    if isinstance(on_error, str):
        on_error = {Exception: on_error}
    for kind, word in on_error.items():
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise errors.InvalidOption(f"on_error is by exception type, and {kind!r} is none")
        check_word("on_error", word, Keep)
    return dict(on_error)
