"""Facts in a push dataset of Power BI, within its published limits.

It knows no keys: a row that is posted twice is there twice. So rows of dimensions are claimed in the ledger,
each once for good, and a post whose answer was lost is told as that.
"""

import threading
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Final
from urllib.parse import quote

from semel.apps.client import AnswerLost, RemoteClient, RequestRefused, Unavailable
from semel.apps.quill.declared import schema_of
from semel.apps.quill.rate_limiter import AdmittedRequest, Rate, RateLimiter, RemoteLimits, RequestCombiner
from semel.apps.quill.schema import DEFAULT, Fact, FactRow, StarSchema, dimensions
from semel.apps.quill.settings import Settings
from semel.connect import Semel
from semel.core.clock import Clock
from semel.core.keys import Key
from semel.core.policy import DAY
from semel.errors import Later
from semel.model import Busy, Claimed, Unknown

NAME: Final = "Power BI"

# https://learn.microsoft.com/en-us/power-bi/developer/embedded/push-datasets-limitations
ROWS_A_REQUEST: Final = 10_000
REQUESTS_A_MINUTE: Final = 120
ROWS_AN_HOUR: Final = 1_000_000
PENDING: Final = 5

TOO_MANY: Final = 429

# A quarter of the minute's requests may go at once. The rows of a request are only counted once it is
# answered, so that an hour has to leave room for as many of the largest as can be under way.
REQUESTS: Final = Rate(REQUESTS_A_MINUTE, 60, REQUESTS_A_MINUTE / 4)
ROOM: Final = ROWS_AN_HOUR - PENDING * ROWS_A_REQUEST
ROWS: Final = Rate(ROOM, 3600, ROOM / 10)

# Whoever would have to wait for longer is better told to come back.
PATIENCE: Final = 2.0

# After a failure nobody asks again for a moment, or for as long as it was asked for: while it is away,
# deliveries are not held up by it, and what was never sent is in no doubt. While it goes on failing the
# pauses grow: it is asked seldom, and nothing waits for long once it is back.
PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0

# https://learn.microsoft.com/en-us/entra/identity-platform/v2-oauth2-client-creds-grant-flow
SCOPE: Final = "https://analysis.windows.net/powerbi/api/.default"
# A token that ends while its request is on its way is of no use.
MARGIN: Final = 60.0
# The documentation shows an expired token answered by 403 as well.
# https://learn.microsoft.com/en-us/power-bi/developer/embedded/troubleshoot-rest-api
EXPIRED: Final = frozenset({401, 403})

# A row of a dimension is there for good, and so is the memory of it.
FOR_GOOD: Final = 3650 * DAY
# What still fits into a key, four bytes to a character and the rest of the key beside it.
LONGEST_NAME: Final = 150


class AccessTokens:
    """Access tokens by client credentials: each is used until it ends, or is refused."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._path = f"/{quote(settings.powerbi_tenant, safe='')}/oauth2/v2.0/token"
        self._form = {
            "grant_type": "client_credentials",
            "client_id": settings.powerbi_client,
            "client_secret": settings.powerbi_secret,
            "scope": SCOPE,
        }
        self._client = RemoteClient(
            "Entra ID", settings.powerbi_login, timeout=settings.powerbi_timeout, attempts=1
        )
        self._clock, self._lock = clock, threading.Lock()
        self._token, self._until = "", 0.0

    def get(self, *, instead_of: str = "") -> str:
        """One that may be used, and is not the one that was refused."""
        with self._lock:
            if self._token == instead_of or self._clock.monotonic() >= self._until:
                self._ask()
            return self._token

    def _ask(self) -> None:
        asked = self._clock.monotonic()
        try:
            answer = self._client.call("POST", self._path, data=self._form).json()
            token, lasts = str(answer["access_token"]), float(answer["expires_in"])
        except (AnswerLost, ValueError, KeyError, TypeError) as error:
            # A token that nobody got does no harm, so that nothing is in doubt.
            raise Unavailable("Entra ID", f"gave no token: {type(error).__name__}") from error
        self._token, self._until = token, asked + lasts - min(MARGIN, lasts / 2)

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()


class PowerBI:
    """A push dataset."""

    repeats = False
    most = ROWS_A_REQUEST

    def __init__(self, s: Semel, settings: Settings, schema: StarSchema = DEFAULT) -> None:
        self._schema = schema
        self._ledger, self._clock = s.ledger, s.clock
        self._lease, self._holds = settings.lease, settings.lost_posts == "hold"
        self._tokens = AccessTokens(settings, s.clock)
        self._client = RemoteClient(NAME, settings.powerbi_url, timeout=settings.powerbi_timeout, attempts=1)
        self._place = settings.powerbi_workspace, settings.powerbi_dataset
        self._dataset = f"{_workspace(settings)}/{quote(settings.powerbi_dataset, safe='')}"
        self._known: set[tuple[str, str]] = set()
        # What Power BI takes for one dataset, from all who post to it.
        limits = RemoteLimits(REQUESTS, ROWS, PENDING, settings.lease, PATIENCE, PAUSE, LONGEST_PAUSE)
        self._rate_limiter = RateLimiter(s, NAME, Key("PACE", *self._place), limits)
        lost = partial(AnswerLost, NAME, "may have carried out the request (it was interrupted)")
        self._facts = {
            table: RequestCombiner(
                partial(self._send, table), self._rate_limiter.turn, ROWS_A_REQUEST, lost, (RequestRefused,)
            )
            for table in schema.facts
        }

    def check(self) -> None:
        """Raise `Later` while nothing would be let through."""
        self._rate_limiter.check()

    def post(self, facts: Sequence[Fact]) -> None:
        """Add facts of one table, `most` at most: in one request, so that none or all of them are there."""
        [table] = {fact.table for fact in facts}
        if table not in self._facts:
            # It was read while something else was declared, and has waited since.
            raise RequestRefused(NAME, f"is given no table {table} any more")
        self._facts[table].send([fact.row for fact in facts])

    # Dimensions

    def ensure(self, facts: Sequence[Fact]) -> None:
        """See to the rows that these facts refer to; each is posted once ever, whoever needs it first."""
        rows = dimensions(facts)
        missing = rows.keys() - self._known
        for table in self._schema.dimensions:
            some = sorted(one for one in missing if one[0] == table)
            if some:
                self._ensure(table, {one: rows[one] for one in some})

    def _ensure(self, table: str, rows: dict[tuple[str, str], FactRow]) -> None:
        outcomes = self._ledger.claim_many(
            [self._key(*one) for one in rows],
            lease=self._lease,
            ttl=FOR_GOOD,
            on_lapsed="hold" if self._holds else "rerun",
        )
        mine = {one: it for one, it in zip(rows, outcomes, strict=True) if isinstance(it, Claimed)}
        if mine:
            self._add(table, [rows[one] for one in mine], list(mine.values()))
        if any(isinstance(outcome, Busy) for outcome in outcomes):
            raise Later(1.0, f"{NAME} is being given rows that these refer to")
        # One in doubt is probably there and holds up no facts. Somebody settles it: it is asked for again.
        self._known |= {one for one, it in zip(rows, outcomes, strict=True) if not isinstance(it, Unknown)}

    def _key(self, table: str, name: str) -> Key:
        """What a row is remembered by: where it is, too, as another dataset has none of this one's."""
        # A name out of an event may be no key: empty, too long, or with characters that no key has.
        fits = name.isprintable() and 0 < len(name) <= LONGEST_NAME
        return Key("DIM", *self._place, table, name if fits else sha256(name.encode()).hexdigest())

    def _add(self, table: str, rows: list[FactRow], claims: list[Claimed]) -> None:
        try:
            with self._rate_limiter.turn() as turn:
                self._send(table, rows, turn)
        except AnswerLost as error:
            if self._holds:
                self._ledger.doubt_many(claims)
            else:
                self._ledger.release_many(claims, error)
            # What is in doubt is these rows, and not the facts, which nobody has posted yet.
            raise Unavailable(NAME, "has not answered about rows that facts refer to") from error
        except BaseException:
            self._ledger.release_many(claims)
            raise
        self._ledger.complete_many(claims)

    # Requests

    def _send(self, table: str, rows: Sequence[FactRow], turn: AdmittedRequest) -> None:
        path, body = f"{self._dataset}/tables/{table}/rows", {"rows": list(rows)}
        turn.rows = len(rows)
        try:
            _call(self._client, self._tokens, path, body)
        except (Unavailable, AnswerLost) as error:
            turn.failed, turn.asked = True, error.retry_after
            if error.status == TOO_MANY:
                # Somebody else posts there too: it is not this one's turn, and nothing was done.
                wait = PAUSE if turn.asked is None else turn.asked
                raise Later(wait, f"{NAME} takes no more just now", everyone=True) from error
            raise

    def close(self) -> None:
        """Let go of connections."""
        self._client.close()
        self._tokens.close()


def _workspace(settings: Settings) -> str:
    return f"/v1.0/myorg/groups/{quote(settings.powerbi_workspace, safe='')}/datasets"


def _call(client: RemoteClient, tokens: AccessTokens, path: str, body: Any) -> Any:
    token = tokens.get()
    try:
        return client.call("POST", path, json=body, headers=_bearer(token))
    except RequestRefused as error:
        if error.status not in EXPIRED:
            raise
    return client.call("POST", path, json=body, headers=_bearer(tokens.get(instead_of=token)))


def _bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


# The dataset itself


def definition(name: str, schema: StarSchema = DEFAULT) -> dict[str, Any]:
    """The dataset as Power BI makes it: the tables, and what refers to what."""
    tables = [
        {"name": table, "columns": [{"name": column, "dataType": kind} for column, kind in columns.items()]}
        for table, columns in schema.tables.items()
    ]
    relationships = [
        {
            "name": f"{table}_{schema.key_of(other)}",
            "fromTable": table,
            "fromColumn": schema.key_of(other),
            "toTable": other,
            "toColumn": schema.key_of(other),
        }
        for table, others in schema.refers.items()
        for other in others
    ]
    return {"name": name, "defaultMode": "Push", "tables": tables, "relationships": relationships}


def create_dataset(settings: Settings, name: str = "Quill") -> str:
    """Make the push dataset in the workspace, and give its id, for `powerbi_dataset`."""
    tokens = AccessTokens(settings, Clock())
    client = RemoteClient(NAME, settings.powerbi_url, timeout=settings.powerbi_timeout)
    try:
        asked = definition(name, schema_of(settings))
        return str(_call(client, tokens, _workspace(settings), asked).json()["id"])
    finally:
        client.close()
        tokens.close()
