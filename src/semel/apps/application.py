"""What an application is: the class that `semel serve`, `semel work` and Lambda functions run.

Its class is called with a ledger, the inbox of its name and its settings. What every application has is
`Application`; what it may have besides is `Handles`, `Shows`, `Presents` and `Deploys`, and the facts in
`AppFacts`.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import msgspec

from semel.connect import Semel
from semel.core.policy import Options
from semel.doors.http.problems import ProblemTypes
from semel.doors.inbox import Inbox, Message
from semel.doors.webhooks import Headers, WebhookResponse
from semel.errors import InvalidOption
from semel.ops.blocks import AppPage
from semel.tables import Table

if TYPE_CHECKING:
    from fastapi import APIRouter

    from semel.apps.deployment import Deployment

S_contra = TypeVar("S_contra", bound=msgspec.Struct, contravariant=True)


class Hook(Protocol):
    """What takes the deliveries at one address, such as `semel.doors.webhooks.Ingress`."""

    def receive(self, headers: Headers, body: bytes, *, method: str = ..., url: str = ...) -> WebhookResponse:
        """Take a delivery, and answer it: how a Lambda function asks."""

    async def areceive(
        self, headers: Headers, body: bytes, *, method: str = ..., url: str = ...
    ) -> WebhookResponse:
        """Take a delivery, and answer it: how the service asks."""


class Application(Protocol):
    """What every application of the service has."""

    @property
    def settings_type(self) -> type[msgspec.Struct]:
        """What its section `[apps.NAME]` is read as: an attribute of the class."""

    @property
    def hooks(self) -> Mapping[str, Hook]:
        """The addresses that take POST requests, and who takes them."""

    def close(self) -> None:
        """Let go of connections and threads of its own."""


class ApplicationClass(Protocol[S_contra]):
    """The class of an application, by which the service makes it."""

    def __call__(self, s: Semel, inbox: Inbox, settings: S_contra, /) -> Application:
        """Make it; `semel.apps.settings.wrong` makes the error for a setting that cannot work."""


@runtime_checkable
class Handles(Protocol):
    """An application with messages in its inbox, for workers to handle."""

    def handle(self, message: Message, /) -> Any:
        """Do what a message asks for; it is called within `once`, under the message's key."""


@runtime_checkable
class Shows(Protocol):
    """An application that has something to be read under `/apps/NAME/`, by a token with `apps:read`."""

    def router(self) -> "APIRouter":
        """Its routes."""


@runtime_checkable
class Presents(Protocol):
    """An application with pages of its own in the dashboard."""

    def pages(self) -> Mapping[str, AppPage]:
        """Its pages by the names that their addresses have: small letters, digits and underscores."""


class Deploys(Protocol):
    """An application that says what it needs on AWS, for `semel provision --app NAME`."""

    @classmethod
    def deployment(cls) -> "Deployment":
        """Its functions, tables, queue, settings and secrets."""


class AppFacts(msgspec.Struct, frozen=True):
    """What a class may say about its applications, as class attributes of these names."""

    needs_secret: bool = False
    """Whether it needs `semel.secret`: it names persons by hashes that nobody else can make."""
    ledger_table: Table | None = None
    """The table that is its ledger in DynamoDB; without one it has a scope of its name in the store's."""
    problem_types: ProblemTypes = {}
    """The problems that only it answers with, each with its status and title; the service publishes them."""


def facts_of(kind: type) -> AppFacts:
    """What a class says."""
    declared = {name: getattr(kind, name) for name in AppFacts.__struct_fields__ if hasattr(kind, name)}
    # Converting refuses a subclass of what is declared, which a `TableMapping` is.
    table = declared.get("ledger_table")
    own = {"ledger_table": declared.pop("ledger_table")} if isinstance(table, Table) else {}
    return msgspec.structs.replace(msgspec.convert(declared, AppFacts), **own)


def check_shared(inbox: Inbox) -> None:
    """Refuse an inbox whose messages have other keys in the ledger than the application's table does."""
    if inbox.record_key("key") != "key":
        raise InvalidOption(f"open the inbox of {inbox.name} with shared=True: its records have fixed keys")


def worker_options(app: Any) -> Options:
    """How an application wants its messages handled: its `worker_options`, where it has any."""
    options: Options = dict(getattr(app, "worker_options", {}))  # type: ignore[assignment]  # a dict of another type
    return options
