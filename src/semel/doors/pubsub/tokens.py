"""The token of a push request: a JWT that Google signs, with what was set on the subscription.

https://docs.cloud.google.com/pubsub/docs/authenticate-push-subscriptions
"""

import json
import re
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeAlias
from urllib.request import urlopen

from semel.core.clock import Clock
from semel.core.runtime import require
from semel.doors.webhooks.reading import Headers, values
from semel.errors import BadSignature, InvalidOption

CERTS_URL: Final = "https://www.googleapis.com/oauth2/v1/certs"
ISSUERS: Final = frozenset({"accounts.google.com", "https://accounts.google.com"})
# Google's own clocks and ours may differ by so much.
SKEW_SECONDS: Final = 10
# Google says for how long its certificates may be kept, some hours; this is for an answer that does not.
CERTS_SECONDS: Final = 3600.0
# A token with a key that nobody knows has them fetched anew, but not each time: anybody can send one.
EARLIEST_SECONDS: Final = 60.0

Certs: TypeAlias = Mapping[str, str]
"""Google's certificates: PEM by the id of a key."""


class GoogleCerts:
    """Google's certificates, fetched when they are needed, and kept for as long as Google says."""

    def __init__(self, url: str = CERTS_URL, *, timeout: float = 10.0) -> None:
        self._url, self._timeout, self._now = url, timeout, Clock().monotonic
        self._certs: Certs = {}
        self._fetched = self._until = float("-inf")
        self._lock = threading.Lock()

    def __call__(self, key: str) -> Certs:
        """The certificates, among which this key's is to be."""
        with self._lock:
            now = self._now()
            stale = now >= self._until or (key not in self._certs and now >= self._fetched + EARLIEST_SECONDS)
            if stale:
                self._fetch(now)
            return self._certs

    def _fetch(self, now: float) -> None:
        with urlopen(self._url, timeout=self._timeout) as answer:  # noqa: S310 - an address of the caller's own
            self._certs = json.load(answer)
            age = re.search(r"max-age=(\d+)", answer.headers.get("Cache-Control", ""))
        self._fetched, self._until = now, now + (float(age[1]) if age else CERTS_SECONDS)


class PushToken:
    """What the token of a push request has to say: its `audience`, and the service account's `email`.

    Both are as they were set on the subscription; without an audience there, it is the address that is pushed
    to. `certs` gives Google's certificates.
    """

    def __init__(
        self, audience: str, email: str, *, certs: Certs | Callable[[str], Certs] | None = None
    ) -> None:
        if not audience or not email:
            raise InvalidOption("a push token needs the audience and the email that the subscription has")
        self._jwt: Any = require("google.auth.jwt", "pubsub")
        self._invalid: Any = require("google.auth.exceptions", "pubsub").GoogleAuthError
        self._audience, self._email = audience, email
        self._certs: Certs | Callable[[str], Certs] = GoogleCerts() if certs is None else certs

    def verify(self, headers: Headers) -> None:
        """Raise BadSignature unless Google made the token of this request for us."""
        found = values(headers, "Authorization")
        scheme, _, token = found[0].partition(" ") if len(found) == 1 else ("", "", "")
        if scheme.lower() != "bearer":
            raise BadSignature("it has no bearer token, or several")
        try:
            key = str(self._jwt.decode_header(token).get("kid"))
            certs = self._certs(key) if callable(self._certs) else self._certs
            claims = self._jwt.decode(
                token, certs, audience=self._audience, clock_skew_in_seconds=SKEW_SECONDS
            )
        except (ValueError, self._invalid) as error:
            raise BadSignature(f"its token does not hold: {type(error).__name__}") from None
        self._check(claims)

    def _check(self, claims: Mapping[str, Any]) -> None:
        if claims.get("iss") not in ISSUERS:
            raise BadSignature("its token was not issued by Google")
        if claims.get("email") != self._email or claims.get("email_verified") is not True:
            raise BadSignature("its token is about another account")
