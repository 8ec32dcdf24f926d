"""`Idempotency`: what an HTTP server promises about `Idempotency-Key`, and the decisions of its doors.

The doors (ASGI, WSGI and the frameworks) read requests and send answers; everything they have in common is
here, and nothing here reads or sends.
"""

import base64
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final, Literal, Self, TypeAlias, Unpack
from urllib.parse import quote

import msgspec

from semel import errors
from semel.connect import Semel
from semel.core.commands import Steps
from semel.core.events import What
from semel.core.keys import MAX_NAME_BYTES, Key, canonical_json, hash_of, owned, part
from semel.core.policy import Options, Policy, Seconds, check_word, seconds
from semel.doors.http import field
from semel.doors.http.problems import UNAVAILABLE
from semel.doors.http.responses import (
    KEPT_HEADERS,
    NEVER_STORED,
    HTTPResponse,
    Pairs,
    ProblemType,
    StoredResponse,
    is_final,
    problem,
    problem_later,
    problem_of,
)
from semel.model import Record
from semel.once import Block


class Anyone(msgspec.Struct, frozen=True):
    """The type of `ANYONE`."""


ANYONE: Final = Anyone()
"""Callers are not told apart: whoever knows a key gets its response."""

Identity: TypeAlias = Callable[[Any], str | int | None]
PayloadRule: TypeAlias = Literal["bytes", "json"] | Callable[[Any, bytes], Any]

WELL_KNOWN: Final = "/.well-known/idempotency-key"

# In bytes, and escaped: so that an operation and a key, or two scopes, always fit into a name of ours.
LONGEST_PART: Final = 400
HASHED: Final = "sha256:"

# A busy client comes back soon, whatever is left of a lease that is mostly much longer than the work.
LONGEST_PAUSE: Final = 5
# A store that is down is given a little longer.
STORE_PAUSE: Final = 5

# So many tenants' ledgers are kept ready; making one again costs some microseconds.
READY: Final = 4096


class RequestHead(msgspec.Struct, frozen=True):
    """The head of a request; header names are in lower case, and `native` is the framework's own request."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    native: Any
    root: str = ""
    """What stands before the path of every page of this application."""


class AdmittedKey(msgspec.Struct, frozen=True):
    """A request that may be worked on under its key."""

    block: Block
    key: str
    base: str
    query: str
    native: Any

    @property
    def url(self) -> str:
        """Where its status can be asked for."""
        return f"{self.base}/{base64.urlsafe_b64encode(self.key.encode()).decode().rstrip('=')}"


class Idempotency:
    """What a server promises about requests that carry an `Idempotency-Key`.

    `identity` gives, of the framework's own request, the authenticated caller whose keys these are; `ANYONE`
    says that there is none. `expiry` allows clients to choose, within these bounds, how long they are
    remembered. `keep` decides which statuses are stored and replayed; after others the key is released, so
    that a retry runs. By default these are 408, 423, 425, 429, and 500 and above.
    `payload` is what must not change under one key: the body's bytes, its JSON, or what a function makes of
    the framework's request and the body.
    """

    def __init__(
        self,
        s: Semel,
        *,
        identity: Identity | Anyone,
        methods: Collection[str] = ("POST", "PATCH"),
        required: bool = True,
        strict: bool = False,
        expiry: tuple[Seconds, Seconds] | None = None,
        keep: Callable[[int], bool] = is_final,
        headers: Collection[str] = KEPT_HEADERS,
        payload: PayloadRule = "bytes",
        max_key: int = 255,
        max_body: int = 1024 * 1024,
        max_kept: int = 256 * 1024,
        well_known: str = WELL_KNOWN,
        **options: Unpack[Options],
    ) -> None:
        self.s: Semel = s.through("http")
        self._secret = s.ledger.steps.realm.secret
        self.methods: frozenset[str] = frozenset(method.upper() for method in _several("methods", methods))
        self.required = required
        self.strict = strict
        self.keep = keep
        self.max_key = max_key
        self._simple_key = re.compile(rf'"[A-Za-z0-9_.~-]{{1,{min(max_key, LONGEST_PART)}}}"')
        self.max_body = max_body
        self._digits = len(str(max_body))
        """A length in fewer digits is smaller."""
        self.max_kept = max_kept
        self.well_known = well_known
        self.headers: frozenset[str] = _checked_headers(_several("headers", headers))
        self._identity = _checked_identity(identity)
        self.has_owners: bool = self._identity is not None
        """Whether callers are told apart."""
        self.payload = payload
        if not callable(payload):
            check_word("payload", payload, Literal["bytes", "json"])
        self._options: Options = {"on_busy": "raise", **options}
        self._blocks: dict[tuple[str, float], Block] = {}
        self._operations: dict[tuple[str, str], str] = {}
        self.policy: Policy = self._block("", 0.0).policy
        self.expiry: tuple[float, float] | None = self._checked_expiry(expiry)

    def __deepcopy__(self, _memo: object) -> Self:
        return self  # some frameworks copy what a route is made of, and a ledger is shared

    # Requests in

    def protects(self, method: str) -> bool:
        """Whether requests of this method are this policy's business."""
        # Some servers pass on what the client wrote, and frameworks take it for the same.
        return method in self.methods or method.upper() in self.methods

    def admit(self, request: RequestHead) -> AdmittedKey | HTTPResponse | None:
        """Admit a request, or return the answer that rejects it; None if it is not protected at all."""
        text = request.headers.get("idempotency-key")
        if text is None and not self.required:
            return None
        base = self.base_of(request.root) if request.root else self.well_known
        span = request.headers.get("idempotency-expiry-seconds")
        try:
            # Nearly every key is a UUID or the like, which is a part of a key as it stands.
            simple = text is not None and self._simple_key.fullmatch(text)
            key = text[1:-1] if text is not None and simple else _part(self._key(text))
            ttl = 0.0 if span is None else self._ttl(span)
            length = request.headers.get("content-length", "")
            if len(length) >= self._digits:
                self._check_length(length)
            owner = "" if self._identity is None else self._owner(request.native)
        except Rejected as rejected:
            return self.reject(rejected.kind, base, str(rejected))
        operation = self._operations.get((request.method, request.path))
        name = (operation or self._operation(request.method, request.path)) + key
        block = self._blocks.get((owner, ttl)) or self._block(owner, ttl)
        return AdmittedKey(block, name, base, request.query, request.native)

    def fingerprint(self, admitted: AdmittedKey, body: bytes) -> str:
        """Return the fingerprint of what must not change under the key."""
        payload = self.payload
        try:
            if callable(payload):
                return self.s.fingerprint(payload(admitted.native, body))
            if payload == "json":
                body = canonical_json(body)
        except errors.InvalidPayload:
            pass  # the application may accept it all the same, and its bytes tell it from any other
        return hash_of(admitted.query.encode("utf-8", "surrogateescape") + b"\n" + body, self._secret)

    def too_large(self, base: str) -> HTTPResponse:
        """Return the answer to a body that is longer than allowed."""
        return self.reject("body-too-large", base, f"It may have {self.max_body} bytes.")

    # Answers out

    def refuse(self, admitted: AdmittedKey, error: BaseException, *, begun: bool = False) -> HTTPResponse:
        """Return the answer to a request that may not run or, if it has begun, could not be stored."""
        if isinstance(error, errors.StoreError | errors.ShuttingDown):
            return self.unavailable(admitted.base, error, begun=begun)
        base = admitted.base
        match error:
            case errors.InProgress(retry_after=left):
                pause = min(left, LONGEST_PAUSE)
                return self._come_back("in-progress", admitted, pause, "Ask again, or ask for its status.")
            case errors.ClaimLost() | errors.Reentered():
                return self._come_back("in-progress", admitted, 1, "Another attempt at it has taken over.")
            case errors.OutcomeUnknown():
                detail = "An attempt vanished, and its effect may have happened. It has to be settled."
                return problem(
                    "outcome-unknown", base, detail, self._status_link(admitted), status_url=admitted.url
                )
            case errors.FailedBefore():
                return problem("failed-before", base, "Every attempt that it is allowed was made.")
        answer = problem_of(error, base)
        if answer is None:
            raise error
        return answer

    def reject(self, kind: ProblemType, base: str, detail: str) -> HTTPResponse:
        """Return the answer to a request that has no key, or an unusable one."""
        self.s.events.emit(What.REFUSED, "", detail=kind)
        return problem(kind, base, detail)

    def unavailable(
        self, base: str, error: errors.StoreError | errors.ShuttingDown, *, begun: bool = False
    ) -> HTTPResponse:
        """Return the answer while the store is down, or this server stops."""
        pause, why = STORE_PAUSE, "Whether it was done is not known." if begun else "Nothing was begun."
        if isinstance(error, errors.ShuttingDown):
            pause, why = 1, "This server is stopping."
        elif not isinstance(error, UNAVAILABLE):
            raise error
        return problem_later("unavailable", base, f"{why} Try again, with the same key.", pause)

    # The policy's own pages

    def may_have_page(self, method: str, path: str) -> bool:
        """Return False if a request is for no page of the policy, as nearly every request is."""
        return method in ("GET", "HEAD") and self.well_known in path

    def look_up(self, key: str, native: Any) -> Steps[Record | None]:
        """Read the record of a request of this caller's."""
        owner = self._owner(native)
        shown = self._block(owner, 0.0).shown(key)
        return (yield from self._scoped(owner).ledger.steps.get(shown))

    def base_of(self, root: str) -> str:
        """Return where the policy is published: a prefix may be the client's choice, and hold anything."""
        if not root:
            return self.well_known
        return quote(root.encode("utf-8", "surrogateescape"), safe="/:@!$&'()*+,;=%") + self.well_known

    # Inside

    def _key(self, text: str | None) -> str:
        if text is None:
            raise Rejected(
                "key-missing", "This operation requires the header Idempotency-Key, new for each request."
            )
        try:
            return field.read_key(text, strict=self.strict, longest=self.max_key)
        except field.BadField as bad:
            raise Rejected("key-malformed", f"An Idempotency-Key cannot be used unless {bad}.") from None

    def _ttl(self, text: str) -> float:
        if self.expiry is None:
            raise Rejected("expiry-malformed", "How long a key is remembered cannot be chosen here.")
        try:
            return field.read_seconds(text, *self.expiry)
        except field.BadField as bad:
            raise Rejected("expiry-malformed", f"It cannot be used unless {bad}.") from None

    def _check_length(self, text: str | None) -> None:
        if (field.read_length(text) or 0) > self.max_body:
            raise Rejected("body-too-large", f"It may have {self.max_body} bytes.")

    def _owner(self, native: Any) -> str:
        if self._identity is None:
            return ""
        owner = self._identity(native)
        if isinstance(owner, int) and not isinstance(owner, bool):
            return str(owner)
        if not isinstance(owner, str) or not owner:
            raise Rejected("not-authenticated", "Send the credentials that this operation asks for.")
        return owner

    def _operation(self, method: str, path: str) -> str:
        """What stands before every key of an operation."""
        name = self._operations.get((method, path))
        if name is None:
            if len(self._operations) >= READY:
                self._operations.clear()
            name = f"{Key('http', method.upper(), _short(path))}:"
            if len(path) <= LONGEST_PART:
                self._operations[method, path] = name
        return name

    def _block(self, owner: str, ttl: float) -> Block:
        block = self._blocks.get((owner, ttl))
        if block is None:
            if len(self._blocks) >= READY:
                self._blocks.clear()
            options = self._options if not ttl else {**self._options, "ttl": ttl}
            block = self._scoped(owner).once.block(returns=StoredResponse, **options)
            self._blocks[owner, ttl] = block
        return block

    def _scoped(self, owner: str) -> Semel:
        name = owned(self.s.scope, _short(owner) if owner else "")
        return self.s.scoped(_short(name, MAX_NAME_BYTES)) if name else self.s

    def _checked_expiry(self, bounds: tuple[Seconds, Seconds] | None) -> tuple[float, float] | None:
        if bounds is None:
            return None
        shortest, longest = seconds(bounds[0]), seconds(bounds[1])
        if not self.policy.lease < shortest <= longest:
            raise errors.InvalidOption(
                f"expiry=({shortest:g}, {longest:g}): it goes from short to long, and begins above the lease"
            )
        self._block("", shortest)  # what ends before the other side stops retrying is refused here
        return shortest, longest

    def _come_back(self, kind: ProblemType, admitted: AdmittedKey, pause: float, detail: str) -> HTTPResponse:
        link = self._status_link(admitted)
        return problem_later(kind, admitted.base, detail, pause, link, status_url=admitted.url)

    def _status_link(self, admitted: AdmittedKey) -> Pairs:
        return [("Link", f'<{admitted.url}>; rel="status"; type="application/json"')]


class Rejected(Exception):
    """A request that is rejected before anything is claimed."""

    def __init__(self, kind: ProblemType, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


def _part(text: str) -> str:
    """A text as a part of a key: hashed where it is long, or holds what no key may."""
    return _escaped(text, LONGEST_PART) or part(_hashed(text))


def _short(text: str, longest: int = LONGEST_PART) -> str:
    """A text as it can be part of a name: hashed where it is long, or holds what no name may."""
    return text if _escaped(text, longest) else _hashed(text)


def _escaped(text: str, longest: int) -> str:
    """A text with what parts are joined by escaped; "" where it has to be hashed.

    What looks like such a hash is hashed too, so that no text is another one's.
    """
    try:
        escaped = part(text)
    except errors.InvalidKey:
        return ""
    return escaped if len(escaped.encode()) <= longest and not text.startswith(HASHED) else ""


def _hashed(text: str) -> str:
    return HASHED + hash_of(text.encode("utf-8", "surrogatepass"))


def _several(option: str, names: Collection[str]) -> Collection[str]:
    if isinstance(names, str):
        raise errors.InvalidOption(f"{option}={names!r}: it is a list of names, such as [{names!r}]")
    return names


def _checked_headers(names: Collection[str]) -> frozenset[str]:
    low = frozenset(name.lower() for name in names)
    if secret := low & NEVER_STORED:
        raise errors.InvalidOption(
            f"{', '.join(sorted(secret))} belongs to one client and is never kept: leave it out of headers="
        )
    return low - {"content-length", "transfer-encoding", "connection"}


def _checked_identity(identity: Identity | Anyone) -> Identity | None:
    if isinstance(identity, Anyone):
        return None
    if not callable(identity):
        raise errors.InvalidOption(
            "identity= is a function from a request to its authenticated caller; "
            "identity=ANYONE says that callers are not told apart"
        )
    return identity
