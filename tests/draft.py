"""The page of the docs about the IETF's draft: `python -m tests.draft > docs/reference/idempotency-key.md`.

A test that shows a rule of the draft says so with `@pytest.mark.draft("2.6b")`: the section, and a letter of
ours where a section has several rules.
"""

import sys
from typing import Literal, NamedTuple

from tests.seeds import shown, told

SECTIONS = {
    "2.1": "Syntax",
    "2.2": "Uniqueness of a key",
    "2.3": "Validity and expiry",
    "2.4": "The fingerprint",
    "2.5.1": "What a client is responsible for",
    "2.5.2": "What a resource is responsible for",
    "2.6": "Enforcement",
    "2.7": "Errors",
    "5": "Security considerations",
    "6": "Examples",
}


class Rule(NamedTuple):
    """A rule of the draft, in our own words, and what semel does about it."""

    level: Literal["MUST", "SHOULD", "MAY", "advice"]
    words: str
    ours: str
    whose: Literal["server", "client"] = "server"
    """Who has to keep it; of a client's rule, `ours` says why semel cannot."""
    differs: str = ""
    """How semel deviates, and why."""


RULES = {
    "2.1": Rule(
        "MUST",
        "The field is one structured item, and its value a String: printable ASCII in double quotes",
        "Reads such a string with its escapes, passes over parameters, and refuses everything else with 400: "
        "lists, two header fields, other characters, an empty string",
        differs="A key without quotes is taken for the same key, since most clients in use send it so. "
        "`strict=True` refuses it, as the draft has it.",
    ),
    "2.2a": Rule(
        "MUST",
        "A key is unique, and is not used again with another payload",
        "The client chooses the key. What semel does if it is reused is 2.7b",
        whose="client",
    ),
    "2.2b": Rule(
        "MUST",
        "The owner of the resource defines within what a key is unique",
        "A key is unique for one caller, method and path; the published policy says so in `unique_within`",
    ),
    "2.2c": Rule(
        "SHOULD",
        "A key is a UUID or a similar random value",
        "The client chooses the key. Any string of 1 to 255 characters is taken (`max_key=`): a key of "
        "another caller is of no use to whoever guesses it (5c)",
        whose="client",
    ),
    "2.3a": Rule(
        "MAY",
        "Keys are forgotten after some time",
        "A key is forgotten `ttl` after its response was stored, a day by default; a request with it is then "
        "a new one",
    ),
    "2.3b": Rule(
        "SHOULD",
        "When keys are forgotten is defined, and published in the documentation",
        "The policy has it as `retention_seconds`, the OpenAPI document in `x-idempotency`, and each replay "
        "in `Idempotency-Expires`",
    ),
    "2.4a": Rule(
        "MAY",
        "Beside the key, a fingerprint of the payload tells requests apart",
        "Every request has one, made from the query string and the body",
    ),
    "2.4b": Rule(
        "MAY",
        "It is a checksum of the whole payload or of parts of it, a comparison of fields, or a digest",
        "SHA-256 of the bytes, of the canonical JSON, or of what a function selects (`payload=`); an HMAC if "
        "the ledger has a secret. The policy says which in `payload`",
    ),
    "2.5.1a": Rule(
        "SHOULD",
        "A client knows what the server has published, and makes its keys accordingly",
        "The client's; semel publishes the form of a key as a regular expression, `key_pattern`",
        whose="client",
    ),
    "2.5.1b": Rule(
        "MAY",
        "A client sends the field unasked; it cannot assume that a server it knows nothing about heeds it",
        "The client's. Methods that are not protected, GET for example, ignore the field",
        whose="client",
    ),
    "2.5.1c": Rule(
        "SHOULD",
        "A client sends a unique key with each request",
        "The client's; where a key is required, a request without one is refused (2.7a)",
        whose="client",
    ),
    "2.5.2a": Rule(
        "MUST",
        "The resource publishes a specification of its idempotency",
        "JSON at `/.well-known/idempotency-key`, by the middleware or `publish`, and the OpenAPI document. "
        "Every error links to it",
    ),
    "2.5.2b": Rule(
        "MUST",
        "That specification includes when keys expire",
        "`retention_seconds`, and `expiry` with the bounds if clients may choose",
    ),
    "2.5.2c": Rule(
        "advice",
        "The life of a key is the resource's responsibility",
        "A lease that is renewed while the work runs, a takeover when its worker has died, and an expiry",
    ),
    "2.5.2d": Rule(
        "SHOULD",
        "The server takes the key from the header field",
        "Yes, and from nowhere else",
    ),
    "2.5.2e": Rule(
        "SHOULD", "The server makes a fingerprint if it needs one", "Always, before it claims the key"
    ),
    "2.5.2f": Rule("SHOULD", "The server enforces idempotency", "See 2.6 and 2.7"),
    "2.6a": Rule(
        "SHOULD",
        "A request that was not seen before is processed normally",
        "The application gets it unchanged, and its response goes out unchanged",
    ),
    "2.6b": Rule(
        "SHOULD",
        "A retry after the end of the first request gets that request's result, a success or an error",
        "The same status, body and descriptive headers, with `Idempotent-Replayed: true`; most errors "
        "below 500 too. Cookies are never repeated, and of a body over `max_kept` only the status is",
        differs="A response of 500 and above is not kept by default: it says that the server failed, and the "
        "next request with the key runs again. The same holds for 408, 423, 425 and 429, which ask for a "
        "retry. `keep=` decides which statuses are kept.",
    ),
    "2.6c": Rule(
        "SHOULD",
        "A retry before the end of the first request gets a conflict",
        '409. With `on_busy="wait"` it waits for the response instead, which the owner may choose',
    ),
    "2.7a": Rule(
        "SHOULD",
        "Where a key is required and missing: 400, with a link to the documentation",
        "400 `key-missing`; `type` and the header `Link` lead to the policy. `required=False` lets such a "
        "request run unprotected",
    ),
    "2.7b": Rule(
        "SHOULD",
        "A key that is used again with another payload: 422, with a link to the documentation",
        "422 `payload-changed`; the first response stays stored",
    ),
    "2.7c": Rule(
        "SHOULD",
        "A retry while the first request is being processed: 409, with a description of the problem",
        "409 `in-progress`, with `Retry-After`, and `status_url`, where the client can ask how it stands",
    ),
    "2.7d": Rule(
        "MUST",
        "A client corrects a request that was refused before it sends it again, except after 409; otherwise "
        "the resource fails it with one of these errors",
        "The same request gets the same error each time, and uses up no key; after 409 the same request gets "
        "the response once it is there",
    ),
    "2.7e": Rule(
        "SHOULD",
        "After any other error a client follows the documentation of the resource",
        "The client's; the policy lists every problem type, and in `kept_statuses` what is repeated",
        whose="client",
    ),
    "2.7f": Rule(
        "MAY",
        "Errors are problem details in JSON, or have a `Link` to their description",
        "Both, with `Content-Language`",
    ),
    "5a": Rule(
        "advice",
        "Keys have a fixed format, and it is published",
        "`key_pattern` and `max_key_length` of the policy, and the parameter in the OpenAPI document",
        differs="semel fixes only the alphabet and the length. A UUID is not required, since keys that "
        "clients derive from their own order numbers are as good where callers are told apart.",
    ),
    "5b": Rule(
        "advice",
        "A key is validated by its format before the request is processed",
        "Before the body is read and before the store is asked anything",
    ),
    "5c": Rule(
        "advice",
        "Responses are looked up under the key and something that only the server knows of the client",
        "Under the caller that `identity` returns, the method and the path; two callers never share a key. "
        "`identity=ANYONE` has to be written out",
    ),
    "6": Rule(
        "advice", "Two examples: a UUID, and a random string of letters", "Both are taken, strictly too"
    ),
}

HEADER = """\
# The draft, rule by rule

*The Idempotency-Key HTTP Header Field* is an Internet-Draft of the IETF's HTTPAPI working group. This page
lists its rules for servers and clients in our own words, what the [HTTP doors](doors.md#http) of semel do,
and the tests that show it.

Source: [revision 07](https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/07/) of
15 October 2025, the newest one that we know of on 2026-11-18; it expired on 18 April 2026. We have read the
whole text of revision 06, in the working group's repository (`ietf-wg-httpapi/idempotency`, commit
`dab060c`). Of revision 07 we had only what others quote: most of sections 2 and 5, which does not differ from
revision 06. An Internet-Draft is work in progress, and semel promises what this page says, not what a later
revision may say.

The page is generated by `python -m tests.draft` from the marks in the tests. A test may show only a part of
a rule. "Advice" has none of the words MUST, SHOULD and MAY.
"""

BEYOND = """
## What semel adds

The draft leaves these cases open.

| case | response |
|---|---|
| the key is malformed | 400 `key-malformed` |
| nobody is authenticated | 401 `not-authenticated` |
| an earlier attempt vanished, and the policy holds it for somebody to settle | 409 `outcome-unknown` |
| all allowed attempts failed | 409 `failed-before` |
| it is done, and its response could not be stored | 410 `result-not-kept` |
| the body is too large | 413 `body-too-large` |
| the store cannot be reached | 503 `unavailable`; nothing ran |
"""


def text() -> str:
    """The page."""
    found = shown("draft")
    sections = [_section(number, title, found) for number, title in SECTIONS.items()]
    return "".join([HEADER, _deviations(), *sections, BEYOND])


def section_of(id: str) -> str:
    """The section of the draft that a rule is from."""
    return id.rstrip("abcdefgh")


def _deviations() -> str:
    rows = [
        f"| [{id}](#{_anchor(section_of(id))}) | {rule.differs} |\n"
        for id, rule in RULES.items()
        if rule.differs
    ]
    return f"\n## Where semel deviates\n\n| | how, and why |\n|---|---|\n{''.join(rows)}"


def _section(number: str, title: str, found: dict[str, list[str]]) -> str:
    rows = [_row(id, rule, found.get(id, [])) for id, rule in RULES.items() if section_of(id) == number]
    head = "| | level | rule | what semel does | shown by |\n|---|---|---|---|---|\n"
    return f"\n## {number} {title}\n\n{head}{''.join(rows)}"


def _row(id: str, rule: Rule, tests: list[str]) -> str:
    by = told(tests) if tests or rule.whose == "server" else "a client's"
    return f"| {id} | {rule.level} | {rule.words} | {rule.ours} | {by} |\n"


def _anchor(number: str) -> str:
    return f"{number.replace('.', '')}-{SECTIONS[number].lower().replace(' ', '-')}"


if __name__ == "__main__":
    sys.stdout.write(text())
