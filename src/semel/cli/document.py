"""`semel document`: show a document, and delete documents or expired fields."""

from typing import Annotated, Any, Final, TypeAlias

import typer

from semel import errors
from semel.cli import views
from semel.cli.asking import ByOption, WhyOption, check_why, operator_name
from semel.cli.common import JsonOption, StoreOptions, absent, connected, number, on_a_store, print_json
from semel.state.documents import Document

app: Final = typer.Typer(
    no_args_is_help=True, help="Show a document, and delete documents or expired fields."
)

DocumentKeyArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="KEY", help="The key, as its program writes it.")
]


@app.command()
@on_a_store()
def show(key: DocumentKeyArgument, *, where: StoreOptions, as_json: JsonOption = False) -> None:
    """Show a document: its version, its fields, and when each of them expires."""
    with connected(where) as s:
        document = s.documents.get(key)
    if document is None:
        raise absent("document", key)
    if as_json:
        print_json(for_programs(document))
    else:
        print_document(document)


@app.command()
@on_a_store()
def delete(
    key: DocumentKeyArgument,
    *,
    why: WhyOption,
    by: ByOption = "",
    yes: Annotated[bool, typer.Option("--yes", help="Confirm the deletion.")] = False,
    where: StoreOptions,
) -> None:
    """Delete a document. The operators' journal has who did it and why."""
    check_why(why)
    if not yes:
        raise errors.UsageError(f"once {key!r} is deleted, nothing brings it back: say --yes")
    with connected(where) as s:
        if s.documents.get(key) is None:
            raise absent("document", key)
        # Before the deletion: an entry too many does less harm than a deletion without one.
        s.ops.note(operator_name(by), why, "delete document", key)
        s.documents.delete(key)
    typer.echo(f"{key} is deleted.")


@app.command()
@on_a_store()
def prune(*, where: StoreOptions) -> None:
    """Delete expired fields, from documents that nobody has written since.

    Readers never see expired fields; this is for data that must be gone from the disk too.
    """
    with connected(where) as s:
        pruned = s.documents.prune()
    typer.echo(f"Pruned {number(pruned, 'document')}.")


def print_document(document: Document[dict[str, Any]]) -> None:
    """Print what there is to say of a document, and its fields."""
    about = for_programs(document)
    views.print_pairs([(name, str(about[name])) for name in ("key", "version", "expires_at")])
    if document.value:
        ends = about["ends"]
        rows = [(name, ends.get(name, ""), views.compact(value)) for name, value in document.value.items()]
        views.print_table(("field", "ends", "value"), rows)


def for_programs(document: Document[dict[str, Any]]) -> dict[str, Any]:
    """A document as JSON."""
    return {
        "key": document.key,
        "version": document.version,
        "expires_at": views.moment(document.expires_at),
        "ends": {name: views.moment(end) for name, end in document.ends.items()},
        "value": document.value,
    }
