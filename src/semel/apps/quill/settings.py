"""What can be set about quill, and what its environment variables mean."""

import functools
import os
from collections.abc import Mapping
from typing import Annotated, Final, Literal, TypeAlias
from urllib.parse import quote, urlencode
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import msgspec

from semel.apps import settings as common
from semel.apps.quill.schema import FACTS, ColumnType
from semel.apps.tables import QUILL
from semel.core.policy import DAY
from semel.core.runtime import Concealed

# The five that belong together: with all of them facts go to Power BI, with none to a local file.
POWERBI: Final = (
    "powerbi_tenant",
    "powerbi_client",
    "powerbi_secret",
    "powerbi_workspace",
    "powerbi_dataset",
)

DAYS: Final = "DYNAMO_TTL_DAYS"


wrong: Final = functools.partial(common.wrong, "quill")
function: Final = functools.partial(common.function_of, "quill")


def _days(environ: Mapping[str, str] = os.environ) -> float:
    text = environ.get(DAYS) or "14"
    try:
        return float(text)
    except ValueError:
        raise wrong("ttl_days", f"{DAYS} is {text!r}, and no number of days") from None


class ReportColumn(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A column of a table, and what fills it."""

    path: str = ""
    """Where an event has it, as `body.user_id`; or what quill knows itself, as `$agent`."""
    kind: ColumnType = "string"
    default: str | int | float | bool | None = None
    """What it is where an event does not have it; without this such an event is no fact."""


ColumnSettings: TypeAlias = dict[str, str | ReportColumn]
"""Columns by their names, each with its path alone or in full; the first names the rows."""


class EventRule(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.quill.events.NAME`: which events become facts, and which facts."""

    source: Literal["aloware", "hubspot"]
    type: str = "*"
    """What happened, as a pattern: of Aloware's `event`, or of HubSpot's `subscriptionType`."""
    where: dict[str, str] = {}
    """What else an event has to say: patterns, by where it stands in it."""
    into: str = FACTS
    """The table of facts."""
    metric: str = ""
    title: str = ""
    """The metric as people read it."""
    columns: ColumnSettings = {}
    """Where events of this kind have columns that others have elsewhere."""
    apart: bool = False
    """Whether it is a fact beside others of the same event; its key has this section's name then."""


class Settings(Concealed, msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The section `apps.quill`."""

    aloware_token: Annotated[str | list[str], common.CHOSEN] = ""
    """The bearer token that Aloware's webhook shows; without one its address is not served."""
    hubspot_secret: Annotated[str | list[str], common.GIVEN] = ""
    """The client secret of the HubSpot app; while it is being changed, the old one and the new one."""
    zone: str = "UTC"
    """The time zone of contacts whose own is not known."""
    ttl_days: float = msgspec.field(default_factory=_days)
    """For how long an event is remembered: as `DYNAMO_TTL_DAYS` says, or 14 days."""
    lease: float = 60.0
    """How long a delivery may be at work before it is taken for dead, in seconds."""
    max_attempts: int = 300
    """How often an event is posted in vain before it is put aside: a day of outage, and not an hour."""
    star: str = ""
    """The SQLite file of facts where there is no Power BI; `quill.db` beside the store unless it is said."""
    events: dict[str, EventRule] = {}
    """Which events become facts; without any it is the default report."""
    fact_tables: dict[str, ColumnSettings] = {}
    """The tables that they become rows of, beside the default one."""
    dimensions: dict[str, ColumnSettings] = {}
    """The tables that facts refer to, by a column that is named as the first of these."""
    facts: str = ""
    """A function that makes facts of events in place of these: `package.module:function`."""
    with_default: bool = False
    """Whether events that are nothing by these are what they are by default."""
    lost_posts: Literal["hold", "repeat"] = "hold"
    """When nobody knows whether Power BI has a row: wait for a person, or post it again."""
    powerbi_tenant: str = ""
    powerbi_client: str = ""
    powerbi_secret: Annotated[str, common.GIVEN] = ""
    powerbi_workspace: str = ""
    powerbi_dataset: str = ""
    powerbi_url: str = "https://api.powerbi.com"
    powerbi_login: str = "https://login.microsoftonline.com"
    powerbi_timeout: float = 10.0
    """How long Power BI may take to answer, in seconds."""

    @property
    def ttl(self) -> float:
        """How long an event is remembered, in seconds."""
        return self.ttl_days * DAY

    @property
    def has_powerbi(self) -> bool:
        """Whether facts go to Power BI."""
        return all(getattr(self, name) for name in POWERBI)

    def __repr__(self) -> str:
        # Nobody is to read a secret in a log.
        return f"<settings of quill, {'with' if self.has_powerbi else 'without'} Power BI>"


def check_tokens(settings: Settings) -> None:
    """Refuse to take deliveries that prove nothing."""
    if not settings.aloware_token and not settings.hubspot_secret:
        raise wrong(
            "aloware_token", "set it, or apps.quill.hubspot_secret, or both: nobody could be believed"
        )
    for name in ("aloware_token", "hubspot_secret"):
        if getattr(settings, name):
            common.check_secret("quill", name, getattr(settings, name))


def checked(settings: Settings) -> Settings:
    """These settings, if they can work; else the error that names the wrong one."""
    missing = [name for name in POWERBI if not getattr(settings, name)]
    if missing and len(missing) < len(POWERBI):
        raise wrong(missing[0], f"set it too, or leave out all of {', '.join(POWERBI)}")
    for name in ("powerbi_url", "powerbi_login"):
        common.check_address("quill", name, getattr(settings, name))
    common.check_above_0("quill", settings, ("ttl_days", "lease", "powerbi_timeout"), "a number")
    if settings.has_powerbi and settings.lease < 3 * settings.powerbi_timeout:
        raise wrong("lease", "it is at least three times powerbi_timeout, so that a post ends before it does")
    if settings.max_attempts < 1:
        raise wrong("max_attempts", "it is at least 1")
    zone_of(settings.zone)
    return settings


def zone_of(name: str) -> ZoneInfo:
    """The time zone of a name."""
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        raise wrong("zone", f"{name!r} is no time zone: write it as Europe/Stockholm") from error


# The environment


def from_environment(environ: Mapping[str, str] = os.environ) -> Settings:
    """Settings as the environment has them: `DYNAMO_TTL_DAYS`, and `SEMEL_APPS__QUILL__...` for every one."""
    own = common.variable("quill", "ttl_days")
    return common.from_environment(Settings, "quill", {own: f"{_days(environ)}", **environ})


def store_url(environ: Mapping[str, str] = os.environ) -> str:
    """The ledger's URL by `DYNAMO_TABLE_NAME`, `DYNAMO_REGION` and `DYNAMO_ENDPOINT`."""
    region, endpoint = (environ.get(name, "") for name in QUILL.located_by)
    options = {"layout": QUILL.name} | ({"endpoint": endpoint} if endpoint else {})
    return f"dynamodb://{region}/{quote(environ.get(QUILL.titled_by, ''))}?{urlencode(options)}"
