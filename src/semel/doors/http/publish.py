"""The policy, published: its own pages, and its part of an application's OpenAPI document."""

import base64
import copy
import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, Final

import msgspec

from semel import errors
from semel.core.commands import Steps
from semel.core.drive import adrive, drive
from semel.core.lifecycle import Status
from semel.doors.http.field import EXPIRY, KEY
from semel.doors.http.policy import Idempotency, Rejected, RequestHead
from semel.doors.http.problems import MEDIA_TYPE, problem_schema
from semel.doors.http.responses import (
    EXPIRES,
    NOT_KEPT,
    PROBLEMS,
    REPLAYED,
    HTTPResponse,
    ProblemType,
    problem,
)
from semel.model import Record

DRAFT = "https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/07/"

EXTENSION: Final = "x-idempotency"
PROBLEM: Final = {"$ref": "#/components/schemas/IdempotencyProblem"}

# Of what may be sent as a key this is what everybody understands alike; `read_key` takes a little more.
QUOTED: Final = r'"[ !#-\[\]-~]{1,%d}"'
BARE: Final = r"[!#-+\--:<-\[\]-~]{1,%d}"


STATUSES: Final = {
    Status.IN_PROGRESS: "in-progress",
    Status.COMPLETED: "completed",
    Status.FAILED: "failed",
    Status.UNKNOWN: "unknown",
    Status.RELEASED: "released",
}
NO_STATUS: Final = "The address of a status comes with the answer 409."


# The pages: the policy, and the status of a key


def page_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """Return the page that is asked for; None if it is the application's own."""
    return drive(_page_of(idempotency, request), idempotency.s.store, idempotency.s.events.failed)


async def apage_of(idempotency: Idempotency, request: RequestHead) -> HTTPResponse | None:
    """Return the page that is asked for; None if it is the application's own."""
    return await adrive(_page_of(idempotency, request), idempotency.s.store, idempotency.s.events.failed)


def _page_of(idempotency: Idempotency, request: RequestHead) -> Steps[HTTPResponse | None]:
    before, found, rest = request.path.removeprefix(request.root).partition(idempotency.well_known)
    if before or not found or rest[:1] not in ("", "/") or request.method not in ("GET", "HEAD"):
        return None
    base = idempotency.base_of(request.root)
    if rest:
        return (yield from _status_page(idempotency, base, _key_of(rest[1:]), request.native))
    document = policy_document(idempotency, base.removesuffix(idempotency.well_known))
    return _json_page(document, "public, max-age=300")


def _status_page(idempotency: Idempotency, base: str, key: str, native: Any) -> Steps[HTTPResponse]:
    # Other work of this owner's is not for everybody who speaks HTTP to know.
    if not key.startswith("http:"):
        return problem("no-such-key", base, NO_STATUS)
    try:
        record: Record | None = yield from idempotency.look_up(key, native)
    except Rejected as rejected:
        return idempotency.reject(rejected.kind, base, str(rejected))
    except errors.UsageError:
        return problem("no-such-key", base, NO_STATUS)
    except (errors.StoreError, errors.ShuttingDown) as error:
        return idempotency.unavailable(base, error)
    if record is None:
        return problem("no-such-key", base, "It was never received, or it is no longer remembered.")
    status: dict[str, Any] = {"status": STATUSES[record.status], "attempt": record.attempt}
    if record.status is Status.COMPLETED:
        status["expires_at"] = record.expires_at
    return _json_page(status, "no-store")


def _key_of(token: str) -> str:
    """Return the key that a token stands for; "" if it is no token."""
    try:
        return base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True).decode()
    except ValueError:
        return ""


def _json_page(value: Any, cache: str) -> HTTPResponse:
    body = msgspec.json.encode(value)
    length = ("Content-Length", str(len(body)))
    return HTTPResponse(200, [("Content-Type", "application/json"), length, ("Cache-Control", cache)], body)


def policy_document(idempotency: Idempotency, root: str = "") -> dict[str, Any]:
    """The policy as a value that has a JSON form."""
    document: dict[str, Any] = {
        "specification": DRAFT,
        "header": KEY,
        "required": idempotency.required,
        "quoted_only": idempotency.strict,
        "key_pattern": key_pattern(idempotency),
        "methods": sorted(idempotency.methods),
        "unique_within": [*(["caller"] if idempotency.has_owners else []), "method", "path"],
        "payload": "selected" if callable(idempotency.payload) else idempotency.payload,
        "max_key_length": idempotency.max_key,
        "max_body_bytes": idempotency.max_body,
        "max_kept_bytes": idempotency.max_kept,
        "retention_seconds": math.floor(idempotency.policy.ttl),
        "kept_statuses": _ranges([status for status in range(200, 600) if idempotency.keep(status)]),
        "kept_headers": sorted(idempotency.headers),
        "replay_headers": [REPLAYED, EXPIRES],
        "status": f"{root}{idempotency.well_known}/{{token}}",
        "problems": {
            f"{root}{idempotency.well_known}#{kind}": {"status": status, "title": title}
            for kind, (status, title) in PROBLEMS.items()
        },
    }
    if idempotency.expiry is not None:
        shortest, longest = idempotency.expiry
        document["expiry"] = {
            "header": EXPIRY,
            "minimum": math.ceil(shortest),
            "maximum": math.floor(longest),
        }
    return document


def key_pattern(idempotency: Idempotency) -> str:
    """The values of the header that every server with this policy takes, as a regular expression."""
    quoted, bare = QUOTED % idempotency.max_key, BARE % idempotency.max_key
    return f"^{quoted}$" if idempotency.strict else f"^({quoted}|{bare})$"


def summary(idempotency: Idempotency) -> dict[str, Any]:
    """What the extension of an operation says, beside where the rest is told."""
    policy = policy_document(idempotency)
    names = ("required", "methods", "retention_seconds", "kept_statuses", "expiry")
    return {"policy": idempotency.well_known, **{name: policy[name] for name in names if name in policy}}


# OpenAPI


def describe(
    openapi: dict[str, Any],
    idempotency: Idempotency,
    protected: Callable[[str, str], bool] = lambda _path, _method: True,
) -> dict[str, Any]:
    """An OpenAPI 3 document that says what this policy means for its operations.

    `protected` tells, of a path as the document writes it and a method such as "POST", whether the policy is
    kept there; it is asked for the policy's own methods.
    """
    if not str(openapi.get("openapi", "")).startswith("3."):
        raise errors.InvalidOption(
            "describe() takes an OpenAPI document of version 3: convert this one first"
        )
    return _Document(openapi, idempotency).described(protected)


class _Document:
    """An OpenAPI document while it is being added to."""

    def __init__(self, openapi: dict[str, Any], idempotency: Idempotency) -> None:
        self._openapi = copy.deepcopy(openapi)
        self._idempotency = idempotency
        self._problems = _problems(idempotency)

    def described(self, protected: Callable[[str, str], bool]) -> dict[str, Any]:
        paths = self._openapi.setdefault("paths", {})
        for path, item in paths.items():
            for method in METHODS & item.keys():
                if self._idempotency.protects(method.upper()) and protected(path, method.upper()):
                    self._describe(item[method])
                elif item[method].get(EXTENSION, {}).get("policy") == self._idempotency.well_known:
                    del item[method][EXTENSION]  # it came with another method of the same route
        for path, item in _pages(self._idempotency).items():
            paths.setdefault(path, item)
        schemas = self._openapi.setdefault("components", {}).setdefault("schemas", {})
        schemas["IdempotencyProblem"] = PROBLEM_SCHEMA
        return self._openapi

    def _describe(self, operation: dict[str, Any]) -> None:
        operation[EXTENSION] = summary(self._idempotency)
        operation["parameters"] = self._parameters(operation.get("parameters", []))
        responses = operation.setdefault("responses", {})
        for status, response in responses.items():
            responses[status] = self._resolved(response)
            if _may_be_kept(self._idempotency, str(status)):
                _give_again(responses[status])
        for code, kinds in self._problems.items():
            _add_problem(responses.setdefault(str(code), {}), kinds)
        operation["responses"] = dict(sorted(responses.items(), key=lambda pair: str(pair[0])))

    def _parameters(self, own: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The operation's parameters, with what the policy says of its own."""
        ours = _parameters(self._idempotency)
        names = {parameter["name"].lower() for parameter in ours}
        others = [
            parameter
            for parameter in own
            if (known := self._resolved(parameter)).get("in") != "header"
            or known["name"].lower() not in names
        ]
        return [*others, *ours]

    def _resolved(self, value: dict[str, Any]) -> dict[str, Any]:
        """What a reference of the document's own leads to, as a copy that can be added to."""
        reference = value.get("$ref", "")
        if not reference.startswith("#/"):
            return value
        found: Any = self._openapi
        for name in reference.removeprefix("#/").split("/"):
            found = found[name.replace("~1", "/").replace("~0", "~")]
        return self._resolved(copy.deepcopy(found))


METHODS: Final = frozenset({"get", "put", "post", "delete", "options", "head", "patch", "trace"})


def _parameters(idempotency: Idempotency) -> list[dict[str, Any]]:
    """The headers of a protected request."""
    policy = policy_document(idempotency)
    found: list[dict[str, Any]] = [
        {
            "name": KEY,
            "in": "header",
            "required": policy["required"],
            "description": "Names this request: new for each one, and the same when it is sent again.",
            "schema": {
                "type": "string",
                "minLength": 1,
                "maxLength": policy["max_key_length"] + 2,  # the quotes
                "pattern": policy["key_pattern"],
            },
            "example": '"8e03978e-40d5-43e8-bc93-6894a57f9324"',
        }
    ]
    if (expiry := policy.get("expiry")) is not None:
        found.append(
            {
                "name": EXPIRY,
                "in": "header",
                "required": False,
                "description": "How long the response is to be remembered.",
                "schema": {
                    "type": "integer",
                    "minimum": expiry["minimum"],
                    "maximum": expiry["maximum"],
                    "default": policy["retention_seconds"],
                },
            }
        )
    return found


def _problems(idempotency: Idempotency) -> dict[int, list[ProblemType]]:
    """The problems that a protected operation may answer with, by status."""
    never: set[ProblemType] = {"no-such-key"}
    if not idempotency.required:
        never.add("key-missing")
    if not idempotency.has_owners:
        never.add("not-authenticated")
    found: dict[int, list[ProblemType]] = defaultdict(list)
    for kind, (status, _) in PROBLEMS.items():
        if kind not in never:
            found[status].append(kind)
    return found


def _add_problem(response: dict[str, Any], kinds: list[ProblemType]) -> None:
    """Say that a response may be one of these problems, beside what it is already."""
    titles = ". ".join(PROBLEMS[kind][1] for kind in kinds)
    before = response.get("description", "")
    response["description"] = f"{before}. {titles}" if before else titles
    response.setdefault("content", {})[MEDIA_TYPE] = {"schema": PROBLEM}
    headers = response.setdefault("headers", {})
    headers.setdefault(
        "Link", _header("The published policy, and where the status of the key can be asked for.")
    )
    if RETRIED & set(kinds):
        headers.setdefault(
            "Retry-After", _header("When to ask again, in seconds.", type="integer", minimum=1)
        )


RETRIED: Final[frozenset[ProblemType]] = frozenset({"in-progress", "unavailable"})


def _give_again(response: dict[str, Any]) -> None:
    """Say that a response may be given again."""
    headers = response.setdefault("headers", {})
    headers[REPLAYED] = _header("There where this is the response to an earlier request.", type="boolean")
    headers[EXPIRES] = _header("Until when it is given again, as an HTTP date.")
    if "content" in response:
        headers[NOT_KEPT] = _header("There where the body was too large to be kept.", enum=["not-kept"])
        response["content"].setdefault(MEDIA_TYPE, {"schema": PROBLEM})


def _may_be_kept(idempotency: Idempotency, status: str) -> bool:
    if status == "default":
        return True
    return idempotency.keep(int(status.upper().replace("X", "0")))


def _header(description: str, **schema: Any) -> dict[str, Any]:
    return {"description": description, "schema": {"type": "string", **schema}}


def _pages(idempotency: Idempotency) -> dict[str, Any]:
    """The policy's own pages."""
    status = {
        "200": _json("What is known about it.", STATUS_SCHEMA),
        "404": _refused("no-such-key"),
        "503": _refused("unavailable"),
    }
    if idempotency.has_owners:
        status["401"] = _refused("not-authenticated")
    token = {"name": "token", "in": "path", "required": True, "schema": {"type": "string"}}
    return {
        idempotency.well_known: _page(
            "idempotency_policy",
            "What is promised about requests that carry an Idempotency-Key",
            {"200": _json("The policy.", {"type": "object"})},
        ),
        f"{idempotency.well_known}/{{token}}": _page(
            "idempotency_status",
            "What became of a request; its address comes with the answer 409",
            dict(sorted(status.items())),
            parameters=[token],
        ),
    }


def _page(name: str, summary: str, responses: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "get": {
            "operationId": name,
            "tags": ["idempotency"],
            "summary": summary,
            **more,
            "responses": responses,
        }
    }


def _json(description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _refused(kind: ProblemType) -> dict[str, Any]:
    response: dict[str, Any] = {}
    _add_problem(response, [kind])
    return response


PROBLEM_SCHEMA: Final = problem_schema(
    "IdempotencyProblem",
    "A problem by RFC 9457; its type is an anchor in the published policy.",
    status_url={"type": "string", "format": "uri-reference"},
    retry_after={"type": "integer"},
)

STATUS_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "required": ["status", "attempt"],
    "properties": {
        "status": {"enum": list(STATUSES.values())},
        "attempt": {"type": "integer"},
        "expires_at": {"type": "number"},
    },
}


def _ranges(numbers: list[int]) -> list[str]:
    """Runs of whole numbers, such as "200-499"."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [str(first) if first == last else f"{first}-{last}" for first, last in runs]
