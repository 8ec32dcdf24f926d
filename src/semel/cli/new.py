"""`semel new`: an application of one's own to begin with, which runs and is tested as it is made."""

import keyword
import sys
from importlib.util import find_spec
from pathlib import Path
from string import Template
from typing import Annotated, Final

import typer

from semel import errors
from semel.apps.deployment import camel
from semel.apps.importing import look_beside
from semel.apps.registry import APPS, NAME, deployment, find
from semel.apps.sections import StoreSection
from semel.cli.common import FILE
from semel.cli.init import write_private
from semel.cli.provision import stack_of
from semel.service.settings_file import new_settings

TEMPLATES: Final = Path(__file__).with_name("new_app")

app: typer.Typer = typer.Typer(no_args_is_help=True)


@app.callback()
def new() -> None:
    """Make something to begin with."""


@app.command("app")
def new_app(
    name: Annotated[str, typer.Argument(help="Its name: small letters, digits, and underscores between.")],
) -> None:
    """Make a folder with an application: its code, its tests, its settings and its template for AWS.

    semel new app orders
    """
    check_name(name)
    folder = Path(name)
    if folder.exists():
        raise errors.UsageError(f"{name} is there already: choose another name, or another folder")
    # The last part is made of the first, which has to be there to be imported.
    _write_code(folder, name)
    look_beside(str(folder.resolve()))
    at = f"{name}:{class_of(name)}"
    settings = new_settings(StoreSection().url, [find(name, at)], {name: at})
    write_private(folder / FILE, settings.text)
    needs = deployment(name, at)
    (folder / "template.yaml").write_text(stack_of([needs], "prod", None), "utf-8")
    (folder / "function").mkdir()
    (folder / "function" / "requirements.txt").write_text(f"{needs.requires}\n", "utf-8")
    typer.echo(f"Made {name}/. Next:\n  cd {name}\n  pytest\n  semel provision\n  semel serve")


def check_name(name: str) -> None:
    """Refuse a name that no application can have, or that something else has already."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        raise errors.UsageError(
            f"{name!r} names no app: use small letters and digits, and underscores between them"
        )
    if name in APPS:
        raise errors.UsageError(f"semel has an app {name} of its own: choose another name")
    if name in sys.modules or find_spec(name) is not None:
        raise errors.UsageError(f"there is a module {name} already, which would be imported in its place")


def class_of(name: str) -> str:
    """The name of its class, which nothing else in its module has."""
    return f"{camel(name)}App"


def _write_code(folder: Path, name: str) -> None:
    folder.mkdir()
    files = {
        "app.py": f"{name}.py",
        "test_app.py": f"test_{name}.py",
        "README.md": "README.md",
    }
    for template, file in files.items():
        text = Template((TEMPLATES / f"{template}.template").read_text("utf-8"))
        (folder / file).write_text(text.substitute(app=name, kind=class_of(name)), "utf-8")
    (folder / ".gitignore").write_text(f"{FILE}\n*.db*\n", "utf-8")
