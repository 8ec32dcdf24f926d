"""The sections of `semel.toml`, as values."""

from typing import Annotated, Any, Final, Literal, TypeAlias

import msgspec

from semel.apps.configuration import Configuration, read
from semel.apps.ledgers import at, tables_of
from semel.apps.sections import StoreSection
from semel.core.runtime import Concealed
from semel.state.shards import MOST as SHARDS
from semel.tables import COUNTERS, DOCUMENTS, JOURNAL, LEDGER, Table

NonNegative: TypeAlias = Annotated[int, msgspec.Meta(ge=0)]
Positive: TypeAlias = Annotated[int, msgspec.Meta(ge=1)]
# Ten years at most: TOML has an infinity, and nothing here can wait for that.
PositiveSeconds: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=86_400 * 3650)]
Share: TypeAlias = Annotated[float, msgspec.Meta(gt=0, le=1)]
Port: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=65535)]
ShardNumber: TypeAlias = Annotated[int, msgspec.Meta(ge=1, le=SHARDS)]

Right: TypeAlias = Literal[
    "ledger:read", "ledger:write", "apps:read", "ops:read", "ops:write", "metrics", "admin"
]


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One section; a name that it does not know is refused."""


class ServiceSection(Section, frozen=True):
    """How the HTTP side runs."""

    host: str = "127.0.0.1"
    port: Port = 8000
    workers: NonNegative = 2
    """Threads for each app's inbox in this process."""
    processes: Positive | None = None
    """Processes of `semel work`: one for each processor, or one where it listens on a port."""
    work_port: Port | None = None
    """Where `semel work` answers who watches over it: health and metrics; nowhere unless it is set."""
    public_url: str = ""
    """What webhook senders were told, without a path; some of them sign it."""
    trusted_proxies: list[str] = []
    """Addresses and networks of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    max_body_bytes: Positive = 1_048_576
    max_in_flight: Positive = 256
    max_waiting: Positive = 256
    """Calls of `/v1/wait`, which are not among those in flight."""
    max_live: Positive = 64
    """Pages of the dashboard that are live, which are not either."""
    max_webhooks: Positive = 256
    """Deliveries, which are not either."""
    max_receiving: Positive = 256
    """Requests whose bodies are on their way; one more, and the slowest is given up."""
    share: Share = 0.5
    """How much of each of these one token, one app's webhooks or one peer may have."""
    body_timeout: PositiveSeconds = 20.0
    request_timeout: PositiveSeconds = 60.0
    stop_timeout: PositiveSeconds = 30.0
    """How long what runs may go on after the service was asked to stop."""
    ready_timeout: PositiveSeconds = 2.0
    open: bool = False
    """Let everybody on this machine into the dashboard as an operator, without signing in."""
    open_metrics: bool = False
    rates: bool = True
    """Write once a minute what this process did, for who looks back; needs the table of the journal."""
    log_format: Literal["json", "text"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_keys: bool = False
    """Tell keys, redacted, in the log, beside their digests."""


class TokenSection(Concealed, Section, frozen=True):
    """Who may ask what: the token itself or its SHA-256 in hex."""

    token: str = ""
    sha256: str = ""
    scopes: list[Right] = []
    scope: str | None = None
    """The tenant whose ledger it sees; that of its own name unless this says otherwise."""


class UserSection(Concealed, Section, frozen=True):
    """Somebody who signs in to the dashboard by name and password."""

    password: str
    """The hash of the password, as `semel hash-password` prints it."""
    role: Literal["viewer", "operator"] = "viewer"
    scope: str | None = None
    """The only tenant whose ledger they see; without it, those of all applications."""


class InboxSection(Section, frozen=True):
    """How one app's messages wait and are worked on; what is not said here is as the app says."""

    queue: str = ""
    dead_letters: str = ""
    shards: ShardNumber = 1
    """On the store: so many or more, once one process has said so for all of them."""
    workers: NonNegative | None = None
    max_attempts: Positive | None = None
    lease: PositiveSeconds | None = None
    ttl: PositiveSeconds | None = None
    poll: PositiveSeconds | None = None
    """How long a look for messages lasts, where none is there; SQS counts whole seconds, up to 20."""


class GateSection(Section, frozen=True):
    """A gate by its rules."""

    rules: list[dict[str, Any]] = []
    ttl: PositiveSeconds = 86400.0
    trace: str | None = None


class ServiceSettings(Concealed, Section, frozen=True):
    """All of it."""

    semel: StoreSection = StoreSection()
    service: ServiceSection = ServiceSection()
    tokens: dict[str, TokenSection] = {}
    users: dict[str, UserSection] = {}
    inbox: dict[str, InboxSection] = {}
    apps: dict[str, dict[str, Any]] = {}
    """As they were given: each app knows its own."""
    gates: dict[str, GateSection] = {}


def settings(configuration: Configuration) -> ServiceSettings:
    """The settings, if all of them can work."""
    return read(ServiceSettings, configuration.tree, (), configuration)


def enabled(settings: ServiceSettings, configuration: Configuration) -> list[str]:
    """The apps that are turned on."""
    return [name for name in settings.apps if _flag(name, settings, configuration)]


def _flag(name: str, settings: ServiceSettings, configuration: Configuration) -> bool:
    path, value = ("apps", name, "enabled"), settings.apps[name].get("enabled", True)
    try:
        return msgspec.convert(value, bool, strict=not configuration.is_text(path))
    except msgspec.ValidationError as error:
        raise configuration.wrong(path, str(error)) from error


# Tables

# What the ledger that is lent over HTTP stands on.
API: Final = (LEDGER, DOCUMENTS, JOURNAL, COUNTERS)


def tables_of_app(app: str, settings: ServiceSettings) -> tuple[Table, ...]:
    """Every table that an app needs in the store of these settings."""
    queued = bool(settings.inbox.get(app, InboxSection()).queue)
    return tables_of(app, settings.semel.url, settings.apps.get(app, {}), queued=queued)


def tables_of_api(settings: ServiceSettings, apps: list[str]) -> tuple[Table, ...]:
    """The tables of the HTTP API; where only apps are served, nobody is let in who could ask for them."""
    lent = settings.tokens or settings.users or settings.gates or not apps
    return at(settings.semel.url, API) if lent else ()


def tables_needed(settings: ServiceSettings, apps: list[str]) -> tuple[Table, ...]:
    """Every table that the service needs with these apps."""
    found = [*tables_of_api(settings, apps), *(one for app in apps for one in tables_of_app(app, settings))]
    return tuple(dict.fromkeys(found))
