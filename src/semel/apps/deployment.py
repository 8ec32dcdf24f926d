"""An application in AWS, as a value: its functions, its queue, its tables and their settings.

`stack` makes the SAM template of such values. An application's class gives its own: `deployment()`.
"""

import re
from collections.abc import Collection, Mapping
from types import MappingProxyType

import msgspec
from msgspec.structs import replace

from semel.apps.settings import variable
from semel.errors import InvalidOption
from semel.tables import OWN, Table
from semel.tables.mapping import asked

DAY = 86400

# A function's name within a template, and a variable's: letters and digits, as CloudFormation takes them.
NAME = re.compile(r"[A-Z][A-Za-z0-9]*")


class Function(msgspec.Struct, frozen=True, kw_only=True):
    """A function, and the least that it has to be able to do."""

    handler: str
    """What Lambda calls: `package.module.function`."""
    about: str
    paths: tuple[str, ...] = ()
    """The addresses that it answers POST requests to."""
    works: bool = False
    """Whether it is given the messages of the queue."""
    sends: bool = False
    """Whether it puts messages into the queue."""
    gathers: bool = False
    """Whether it takes along what else is in the queue, and gives back what it has no use for."""
    may: Mapping[Table, tuple[str, ...]] = {}
    """What it does to tables: actions of DynamoDB."""
    secrets: tuple[str, ...] = ()
    """The secrets that it uses, by their fields; it is told no others."""
    settings: tuple[str, ...] | None = None
    """The settings that it uses, by their parameters; None is all of them."""
    timeout: int = 30
    memory: int = 256


class DeploymentQueue(msgspec.Struct, frozen=True, kw_only=True):
    """A FIFO queue with its dead letters."""

    receives: int = 10
    """After so many deliveries in vain a message is put with the dead letters."""
    kept: int = 4 * DAY
    """For how many seconds a message waits at most."""
    batch: int = 10
    """How many messages an invocation is given; a FIFO queue gives no more than 10."""
    workers: int = 10
    """How many of the function's instances work on the queue at a time."""
    late: int = 900
    """A message that waits for longer than so many seconds is worth an alarm."""


class Setting(msgspec.Struct, frozen=True, kw_only=True):
    """Something that is told by an environment variable, and is a parameter of the template."""

    variable: str
    parameter: str
    about: str
    default: str | None = None
    """None has to be given."""


class Secret(msgspec.Struct, frozen=True, kw_only=True):
    """Something that nobody is to read: a field of the application's secret in Secrets Manager."""

    variable: str
    field: str
    about: str
    optional: str = ""
    """The parameter that says whether there is one; "" where there always is."""


def settings_of(
    app: str, kind: type[msgspec.Struct], about: Mapping[str, str], required: Collection[str] = ()
) -> tuple[Setting, ...]:
    """A setting for each field that is told of here, with the field's own default."""
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    return tuple(
        Setting(
            variable=variable(app, name),
            parameter=camel(name),
            about=words,
            default=None if name in required else _written(fields[name]),
        )
        for name, words in about.items()
    )


def secrets_of(
    app: str, about: Mapping[str, str], optional: Mapping[str, str] = MappingProxyType({})
) -> tuple[Secret, ...]:
    """A secret for each field that is told of here, `secret` being semel's own; `optional` has parameters."""
    return tuple(
        Secret(
            variable="SEMEL_SECRET" if field == "secret" else variable(app, field),
            field=field,
            about=words,
            optional=optional.get(field, ""),
        )
        for field, words in about.items()
    )


def camel(name: str) -> str:
    """A name as templates have it: `order_notices` is `OrderNotices`."""
    return "".join(word.capitalize() for word in re.split(r"[-_/]", name))


def _written(field: msgspec.structs.FieldInfo) -> str | None:
    """A field's default as an environment variable has it; None where it has none."""
    made = field.default is msgspec.NODEFAULT and field.default_factory is not msgspec.NODEFAULT
    match field.default_factory() if made else field.default:
        case bool() as flag:
            return str(flag).lower()
        case list() | tuple() as several:
            return ",".join(map(str, several))
        case dict() as table:
            return msgspec.json.encode(table).decode()
        case msgspec.NODEFAULT:
            return None
        case float() as number if number.is_integer():
            return str(int(number))
        case value:
            return str(value)


class Deployment(msgspec.Struct, frozen=True, kw_only=True):
    """An application in AWS."""

    app: str
    functions: dict[str, Function]
    ledger: Table
    """The table that its ledger is in."""
    tables: tuple[Table, ...]
    """Every table that it uses, the ledger's too."""
    queue: DeploymentQueue | None = None
    settings: tuple[Setting, ...] = ()
    secrets: tuple[Secret, ...] = ()
    requires: str
    """What pip installs into the functions."""
    optional: Mapping[str, Table] = {}
    """Tables that it does without where the setting of this name is false."""
    titles: Mapping[str, str] = {}
    """What settings call some of its tables in DynamoDB."""
    off: tuple[str, ...] = ()
    """Settings by which it does without a table."""

    def __post_init__(self) -> None:
        for name in (*self.functions, *(one.parameter for one in self.settings)):
            if not NAME.fullmatch(name):
                raise InvalidOption(f"{name!r} cannot stand in a template: use letters and digits, as Worker")
        for name, function in self.functions.items():
            self._check(f"{name} of {self.app}", function)
        used = {field for function in self.functions.values() for field in function.secrets}
        if unused := [one.field for one in self.secrets if one.field not in used]:
            raise InvalidOption(
                f"no function of {self.app} uses the secret {unused[0]}: say in `secrets` which"
            )

    def _check(self, name: str, function: Function) -> None:
        uses = (
            ("tables", [one.name for one in function.may], [one.name for one in self.tables]),
            ("secrets", function.secrets, [one.field for one in self.secrets]),
            ("settings", function.settings or (), [one.parameter for one in self.settings]),
        )
        for kind, used, known in uses:
            if unknown := [one for one in used if one not in known]:
                raise InvalidOption(f"{name} uses {unknown[0]}, which is not among its {kind}")
        if (function.works or function.sends) and self.queue is None:
            raise InvalidOption(f"{name} uses a queue, and there is none")

    @property
    def title(self) -> str:
        """What its names in a template begin with."""
        return camel(self.app)

    def own(self) -> dict[str, Table]:
        """Its own tables as its settings call them: by their names without the application's."""
        return {self._short(table): table for table in self.tables if table not in OWN}

    def _short(self, table: Table) -> str:
        if table.name == self.app:
            return asked(table).name  # the only one that it has of its own
        return table.name.removeprefix(f"{self.app}-")

    def under(self, titles: Mapping[str, str], off: Collection[str] = ()) -> "Deployment":
        """The deployment with these names of its tables, and without what these settings turn off."""
        without = {self.optional[name] for name in off}
        kept = {
            table: table.titled(titles[table.name]) if table.name in titles else table
            for table in self.tables
            if table not in without
        }

        def on_kept(function: Function) -> Function:
            may = {kept[table]: actions for table, actions in function.may.items() if table in kept}
            return replace(function, may=may)

        functions = {name: on_kept(function) for name, function in self.functions.items()}
        tables, ledger = tuple(kept.values()), kept[self.ledger]
        return replace(self, ledger=ledger, tables=tables, functions=functions, titles=titles, off=tuple(off))
