"""Credentials: the environment's at once, others through botocore, renewed before they expire."""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec

from semel.core.runtime import FORKING, Concealed, require
from semel.core.threads import SignalSafeLock, start_thread
from semel.errors import InvalidOption, MissingExtra, StoreUnavailable

# botocore itself renews what has less than a quarter of an hour left.
RENEW_AHEAD = 15 * 60.0
# A request under way must not outlive its credentials.
LEAST_LIFE = 30.0
# Between two renewals, of which the first brought nothing new while the old ones are still good.
RETRY_AFTER = 60.0

KEY_ID, SECRET, TOKEN = "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"
ADVICE = (
    f"set {KEY_ID} and {SECRET} (and {TOKEN}, where there is one), name a profile with AWS_PROFILE, or run "
    "where a role provides them; a local server takes any two words"
)


class Credentials(Concealed, msgspec.Struct, frozen=True):
    """Who asks; `expires` is in seconds since the epoch."""

    access_key: str
    secret_key: str
    token: str | None = None
    expires: float | None = None

    def __post_init__(self) -> None:
        # They become part of headers, and of what is signed byte for byte.
        for value in (self.access_key, "-" if self.token is None else self.token):
            if not value or " " in value or not (value.isascii() and value.isprintable()):
                raise InvalidOption(
                    "an AWS access key or session token is empty, or holds blanks or line breaks"
                )

    def __repr__(self) -> str:
        return f"<Credentials of {self.access_key}>"


# Told which ones are no longer wanted; it gives those only if there are no others.
CredentialSource = Callable[[Credentials | None], Credentials]


def from_environment(environ: Mapping[str, str] = os.environ) -> Credentials | None:
    """The environment's own credentials, as in a Lambda function."""
    key, secret = environ.get(KEY_ID, "").strip(), environ.get(SECRET, "").strip()
    if bool(key) != bool(secret):
        missing = SECRET if key else KEY_ID
        raise StoreUnavailable(f"the environment has only half of its AWS credentials: set {missing} too")
    return Credentials(key, secret, environ.get(TOKEN, "").strip() or None) if key else None


class Chain:
    """botocore's chain: profiles, SSO, roles, web identity, containers, instance metadata."""

    def __init__(self) -> None:
        self._found: Any = None

    def __call__(self, instead_of: Credentials | None = None) -> Credentials:
        """The credentials of now; may ask the network, and take its time."""
        own = from_environment() or self._frozen()
        if own == instead_of and own.expires is not None:
            # botocore goes by the machine's clock, and is in no hurry where that is behind.
            self._found = None
            own = self._frozen()
        return own

    def _frozen(self) -> Credentials:
        self._found = self._found or self._search()
        try:
            frozen = self._found.get_frozen_credentials()
        except Exception as error:  # providers run commands and ask services, which fail in many ways
            raise StoreUnavailable(f"AWS credentials could not be had ({error}); {ADVICE}") from error
        expiry = getattr(self._found, "_expiry_time", None)
        return Credentials(
            frozen.access_key, frozen.secret_key, frozen.token, expiry.timestamp() if expiry else None
        )

    def _search(self) -> Any:
        try:
            session = require("botocore.session", "boto")
        except MissingExtra as error:
            raise StoreUnavailable(
                f"the environment has no AWS credentials, and for profiles and roles {error}; {ADVICE}"
            ) from error
        try:
            found = session.Session().get_credentials()
        except Exception as error:  # a broken profile, a command that fails
            raise StoreUnavailable(f"AWS credentials could not be had ({error}); {ADVICE}") from error
        if found is None:
            raise StoreUnavailable(f"there are no AWS credentials; {ADVICE}")
        return found


class CredentialCache:
    """The credentials in use: handed out at once while they are good, renewed by one at a time.

    `now` tells the service's time, by which they expire.
    """

    def __init__(self, source: CredentialSource, now: Callable[[], float]) -> None:
        self._source = source
        self._now = now
        self._held: Credentials | None = None
        self._not_before = 0.0
        self.reset_after_fork()
        FORKING.add(self)

    def reset_after_fork(self) -> None:
        """In a forked child: the parent's thread is not here to give the lock back."""
        self._lock = SignalSafeLock()

    def current(self) -> Credentials | None:
        """Credentials that are good, without waiting; None when there are none, and `load` is needed."""
        held = self._held
        if held is None or held.expires is None:
            return held
        now = self._now()
        if held.expires - now < LEAST_LIFE:
            return None
        if held.expires - now < RENEW_AHEAD and now >= self._not_before:
            self._renew_behind(now)
        return held

    def load(self, instead_of: Credentials | None = None) -> Credentials:
        """Good credentials, however long it takes, and not those that were refused if there are others."""
        with self._lock:
            # Whoever waited for the lock mostly finds what the one before has brought.
            held = self._held
            if held is None or held is instead_of or self._is_over(held):
                held = self._held = self._source(held)
            return held

    def _is_over(self, held: Credentials) -> bool:
        return held.expires is not None and held.expires - self._now() < LEAST_LIFE

    def _renew_behind(self, now: float) -> None:
        self._not_before = now + RETRY_AFTER
        # Where no thread can be started, they are renewed when they are no longer good.
        start_thread(threading.Thread(target=self._renew, name="semel-credentials"))

    def _renew(self) -> None:
        # Here, and not where it is started: a signal may come between any two lines there.
        if not self._lock.acquire(blocking=False):
            return
        # Should it fail, the old ones are still good; when they no longer are, whoever asks is told why.
        try:
            with suppress(StoreUnavailable):
                self._held = self._source(self._held)
        finally:
            self._lock.release()
