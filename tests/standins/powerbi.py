"""A stand-in for Power BI's push datasets and for Entra ID's tokens, with the limits that are published.

The limits: https://learn.microsoft.com/en-us/power-bi/developer/embedded/push-datasets-limitations
What is said to whoever exceeds them, 429 with Retry-After: https://msdn.microsoft.com/en-us/library/dn950053.aspx
Rows: https://learn.microsoft.com/en-us/rest/api/power-bi/push-datasets/datasets-post-rows-in-group
Datasets: https://learn.microsoft.com/en-us/rest/api/power-bi/push-datasets/datasets-post-dataset-in-group
Tokens: https://learn.microsoft.com/en-us/entra/identity-platform/v2-oauth2-client-creds-grant-flow
An expired token: https://learn.microsoft.com/en-us/power-bi/developer/embedded/troubleshoot-rest-api
"""

import re
import threading
import uuid
from collections import deque
from datetime import datetime
from typing import Any
from urllib.parse import parse_qsl

from semel.core.clock import Clock
from tests.standins.base import Reply, Request, StandIn, serve

TENANT, CLIENT, SECRET = "11111111-tenant", "22222222-client", "a client secret"
WORKSPACE = "33333333-workspace"
SCOPE = "https://analysis.windows.net/powerbi/api/.default"
LASTS = 3599

ROWS_A_REQUEST = 10_000
REQUESTS_A_MINUTE = 120
ROWS_AN_HOUR = 1_000_000
PENDING = 5
COLUMNS = TABLES = 75
CHARACTERS = 4_000

ROWS = re.compile(r"/v1.0/myorg/groups/([^/]+)/datasets/([^/]+)/tables/([^/]+)/rows")
DATASETS = re.compile(r"/v1.0/myorg/groups/([^/]+)/datasets")


def _refused(status: int, code: str, message: str = "", **headers: str) -> Reply:
    return Reply(status, {"error": {"code": code, "message": message}}, headers)


class Refusal(Exception):
    def __init__(self, reply: Reply) -> None:
        self.reply = reply


class PowerBI(StandIn):
    """One workspace, and the tenant whose app may push into it."""

    def __init__(self, port: int = 0, clock: Clock | None = None) -> None:
        super().__init__(port)
        self.clock = clock or Clock()
        self.forbidden = False
        """The app is no member of the workspace."""
        self.tokens: dict[str, float] = {}
        self.datasets: dict[str, dict[str, dict[str, str]]] = {}
        self._rows: dict[str, dict[str, list[dict[str, Any]]]] = {}
        self._requests: deque[float] = deque()
        self._added: deque[tuple[float, int]] = deque()
        self._under_way, self._counting = 0, threading.Lock()

    def rows(self, table: str, dataset: str | None = None) -> list[dict[str, Any]]:
        """What is in a table of the dataset, or of the only one."""
        with self.lock:
            return list(self._rows[dataset or next(iter(self._rows))][table])

    def expire_tokens(self) -> None:
        """Every token has ended."""
        with self.lock:
            self.tokens = dict.fromkeys(self.tokens, 0.0)

    @property
    def posts(self) -> list[Request]:
        """The requests that brought rows, whatever became of them."""
        return [each for each in self.received if each.path.endswith("/rows")]

    def control(self, word: str, request: Request) -> Reply:
        if word == "rows":
            return Reply(200, self._rows)
        if word == "expire-tokens":
            self.expire_tokens()
            return Reply(204)
        return super().control(word, request)

    def respond(self, request: Request, ended: threading.Event) -> Reply | None:
        rows = bool(ROWS.fullmatch(request.path))
        with self._counting:
            self._under_way += rows
        try:
            return super().respond(request, ended)
        finally:
            with self._counting:
                self._under_way -= rows

    def answer(self, request: Request) -> Reply:
        try:
            return self._answer(request)
        except Refusal as refusal:
            return refusal.reply

    def _answer(self, request: Request) -> Reply:
        if request.path.endswith("/oauth2/v2.0/token"):
            return self._token(request)
        self._check_token(request)
        if found := ROWS.fullmatch(request.path):
            return self._add(found[1], found[2], found[3], request.json)
        if found := DATASETS.fullmatch(request.path):
            return self._create(found[1], request.json)
        return _refused(404, "NotFound")

    # Entra ID

    def _token(self, request: Request) -> Reply:
        form = dict(parse_qsl(request.text))
        if request.path != f"/{TENANT}/oauth2/v2.0/token":
            return Reply(400, {"error": "invalid_request", "error_description": "AADSTS900023: no tenant"})
        if form.get("grant_type") != "client_credentials" or form.get("scope") != SCOPE:
            return Reply(400, {"error": "invalid_scope", "error_description": "AADSTS1002012: no scope"})
        if (form.get("client_id"), form.get("client_secret")) != (CLIENT, SECRET):
            return Reply(401, {"error": "invalid_client", "error_description": "AADSTS7000215: no secret"})
        token = uuid.uuid4().hex
        self.tokens[token] = self.clock.monotonic() + LASTS
        return Reply(200, {"token_type": "Bearer", "expires_in": LASTS, "access_token": token})

    def _check_token(self, request: Request) -> None:
        token = request.headers.get("authorization", "").removeprefix("Bearer ")
        if token not in self.tokens:
            raise Refusal(_refused(401, "PowerBINotAuthorizedException"))
        if self.tokens[token] <= self.clock.monotonic():
            raise Refusal(_refused(403, "TokenExpired", "Access token has expired, resubmit with a new one"))
        if self.forbidden:
            raise Refusal(_refused(403, "PowerBINotAuthorizedException"))

    # Datasets

    def _create(self, group: str, asked: dict[str, Any]) -> Reply:
        self._check_group(group)
        tables = {
            table["name"]: {column["name"]: column["dataType"] for column in table["columns"]}
            for table in asked["tables"]
        }
        if len(tables) > TABLES or any(len(columns) > COLUMNS for columns in tables.values()):
            return _refused(400, "InvalidRequest", "too many tables or columns")
        for one in asked.get("relationships", []):
            ends = (one["fromTable"], one["fromColumn"]), (one["toTable"], one["toColumn"])
            if any(column not in tables.get(table, {}) for table, column in ends):
                return _refused(400, "InvalidRequest", "a relationship of what is not there")
        id = str(uuid.uuid4())
        self.datasets[id] = tables
        self._rows[id] = {name: [] for name in tables}
        return Reply(201, {"id": id, "name": asked["name"], "defaultRetentionPolicy": "None"})

    def _check_group(self, group: str) -> None:
        if group != WORKSPACE:
            raise Refusal(_refused(404, "PowerBIEntityNotFound"))

    # Rows

    def _add(self, group: str, dataset: str, table: str, asked: dict[str, Any]) -> Reply:
        self._check_group(group)
        columns = self.datasets.get(dataset, {}).get(table)
        if columns is None:
            return _refused(404, "PowerBIEntityNotFound")
        rows = asked["rows"]
        self._check_requests()
        if len(rows) > ROWS_A_REQUEST:
            return _refused(413, "RequestEntityTooLarge", "more than 10,000 rows")
        self._check_rows(len(rows))
        for row in rows:
            _check_row(row, columns)
        self._rows[dataset][table] += rows
        return Reply(200)

    def _check_requests(self) -> None:
        if self._under_way > PENDING:
            raise Refusal(_refused(429, "TooManyRequests", "too many are pending", **{"Retry-After": "1"}))
        now = self.clock.monotonic()
        while self._requests and self._requests[0] <= now - 60:
            self._requests.popleft()
        if len(self._requests) >= REQUESTS_A_MINUTE:
            wait = str(int(self._requests[0] + 60 - now) + 1)
            raise Refusal(_refused(429, "TooManyRequests", "over your requests", **{"Retry-After": wait}))
        self._requests.append(now)

    def _check_rows(self, many: int) -> None:
        now = self.clock.monotonic()
        while self._added and self._added[0][0] <= now - 3600:
            self._added.popleft()
        if sum(amount for _, amount in self._added) + many > ROWS_AN_HOUR:
            wait = str(int(self._added[0][0] + 3600 - now) + 1)
            raise Refusal(
                _refused(429, "TooManyRequests", "over your rows per hour", **{"Retry-After": wait})
            )
        self._added.append((now, many))


def _check_row(row: dict[str, Any], columns: dict[str, str]) -> None:
    if unknown := row.keys() - columns.keys():
        raise Refusal(_refused(400, "InvalidRequest", f"no columns {sorted(unknown)}"))
    for name, value in row.items():
        if not _fits(value, columns[name]):
            raise Refusal(_refused(400, "InvalidRequest", f"column {name} is no {columns[name]}"))


def _fits(value: Any, kind: str) -> bool:
    if kind == "bool":
        return isinstance(value, bool)
    if kind in ("Int64", "Double"):
        return not isinstance(value, bool) and isinstance(value, int if kind == "Int64" else int | float)
    if not isinstance(value, str) or len(value) > CHARACTERS:
        return False
    try:
        return kind == "string" or datetime.fromisoformat(value) is not None
    except ValueError:
        return False


if __name__ == "__main__":
    serve(PowerBI)
