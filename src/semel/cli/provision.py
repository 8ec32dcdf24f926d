"""`semel provision`: make a store's tables, check them, or print them as text."""

import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from semel import errors
from semel.apps.tables import deployed
from semel.cli.opening import AsJson, Env, Url, print_json
from semel.clock import Clock
from semel.extras import require
from semel.model import Problem
from semel.provision import OWN, named
from semel.provision.deployment import Deployment
from semel.provision.iam import Role
from semel.provision.places import Place, opened, there
from semel.tables import Table


class Text(StrEnum):
    """A tool that makes tables."""

    CLOUDFORMATION = "cloudformation"
    SAM = "sam"
    TERRAFORM = "terraform"
    CDK = "cdk"
    SQL = "sql"
    IAM = "iam"


def provision(
    *,
    url: Url = None,
    env: Env = "dev",
    table: Annotated[
        list[str] | None, typer.Option(help="A table by its name, repeatable; semel's own by default.")
    ] = None,
    app: Annotated[
        list[str] | None, typer.Option(help="The tables of an app, repeatable; with --print sam, all of it.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Only look, and exit with 1 if all is not well.")
    ] = False,
    printed: Annotated[
        Text | None, typer.Option("--print", help="Print the tables for another tool, and touch nothing.")
    ] = None,
    role: Annotated[Role, typer.Option(help="Whose policy --print iam prints.")] = Role.WORKER,
    as_json: AsJson = False,
) -> None:
    """Make a store's tables, and stamp them for their environment.

    What is there already is left as it is; a second run finds nothing to do.

    semel provision --url dynamodb://eu-west-1 --env prod

    semel provision --print terraform --env prod

    semel provision --app support --print sam --env prod
    """
    sections = _sections() if app else {}
    apps = [deployed(name, sections.get(name, {})) for name in dict.fromkeys(app or ())]
    if apps and printed is Text.SAM:
        typer.echo(stack_of(apps, env, table).rstrip("\n"))
        return
    of_apps = [each for one in apps for each in one.tables]
    chosen = named(table) if table else () if apps else OWN
    tables = there(url, tuple(dict.fromkeys([*chosen, *of_apps])))
    if printed is not None:
        typer.echo(text(printed, tables, env, url, role).rstrip("\n"))
        return
    if not url:
        raise errors.UsageError("name the store: --url dynamodb://eu-west-1, or set SEMEL_URL")
    place = Place(url=url, env=env, tables=tables, clock=Clock())
    with opened(place) as builder:
        if check:
            report(builder.problems(), place, as_json)
        else:
            done = builder.provision(Progress(quiet=as_json))
            tell(done, place, as_json)


def _sections() -> dict[str, dict[str, Any]]:
    """The settings of applications, as `semel serve` would find them here."""
    from semel.cli.serve import FILE
    from semel.service.reading import gather, settings

    return settings(gather(FILE if Path(FILE).is_file() else None)).apps


def text(printed: Text, tables: tuple[Table, ...], env: str, url: str | None, role: Role) -> str:
    """The tables as another tool wants them."""
    from semel.provision import cdk, cloudformation, iam, sam, terraform

    match printed:
        case Text.CLOUDFORMATION:
            return cloudformation.text(tables, env)
        case Text.SAM:
            return sam.text(tables, env)
        case Text.TERRAFORM:
            return terraform.text(tables, env)
        case Text.CDK:
            return cdk.text(tables, env)
        case Text.SQL:
            return sql(tables, env, url)
        case Text.IAM:
            return json.dumps(iam.policy(tables, env, role, region=region(url)), indent=2)


def stack_of(apps: list[Deployment], env: str, table: list[str] | None) -> str:
    """Applications as SAM makes them, with their functions and queues."""
    from semel.provision import stack

    if table:
        raise errors.UsageError("an app brings its own tables: leave out --table, or --app")
    return stack.text(apps, env)


def sql(tables: tuple[Table, ...], env: str, url: str | None) -> str:
    """The tables as PostgreSQL has them, in the schema that a URL names."""
    require("psycopg", "postgres")
    from semel.stores.postgres.address import Address
    from semel.stores.postgres.schema import ddl

    named = url and url.startswith("postgres")
    return ddl(tables, env, Address.from_url(url).schema if url and named else None)


def region(url: str | None) -> str:
    """The region that a store's URL names."""
    from semel.stores.dynamodb.url import parse

    return (parse(url).region if url and url.startswith("dynamodb:") else None) or "*"


class Progress:
    """Says what goes on, and the same thing only once."""

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._said = ""

    def __call__(self, line: str) -> None:
        """Say a line."""
        if line != self._said and not self._quiet:
            typer.echo(line, err=line.endswith("..."))
        self._said = line


def report(problems: list[Problem], place: Place, as_json: bool) -> None:
    """Tell what is wrong, each with its remedy; leave with 1 if anything is."""
    if as_json:
        print_json({"problems": [{"what": each.what, "remedy": each.remedy} for each in problems]})
    else:
        console = Console(highlight=False, soft_wrap=True)
        for each in problems:
            console.print(each.what, style="bold", markup=False)
            console.print(f"  {each.remedy}", markup=False)
        if not problems:
            console.print(f"All is well: environment {place.env} has {counted(place)}.", markup=False)
    if problems:
        raise typer.Exit(1)


def tell(done: list[str], place: Place, as_json: bool) -> None:
    """Tell what was done in all."""
    if as_json:
        print_json({"done": done})
    elif not done:
        typer.echo(f"Nothing to do: environment {place.env} has {counted(place)} as they should be.")


def counted(place: Place) -> str:
    """The tables in words."""
    return f"its tables ({', '.join(table.name for table in place.tables)})"
