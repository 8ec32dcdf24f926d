"""The pages of all public names are made from the source, which says something of each name."""

import ast
from pathlib import Path

import pytest

import semel
from tests.reference.pages import DOORS, FOLDER, PAGES, entries, text
from tests.reference.source import file_of, said
from tests.reference.stubs import laid_out, written

NAMED = [entry for page in PAGES.values() for entry in entries(page)]


@pytest.mark.parametrize("file", PAGES)
def test_a_page_of_names_is_made_from_the_source(file: str) -> None:
    assert (FOLDER / file).read_text("utf-8") == text(PAGES[file]), "python -m tests.reference"


def test_there_is_no_other_page_of_names() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(PAGES)


def test_every_name_that_semel_exports_is_on_a_page() -> None:
    assert {name for module, name, _ in NAMED if module == "semel"} == set(semel.__all__)


def test_every_door_is_on_a_page() -> None:
    folder = file_of("semel.doors").parent
    found = {
        path.stem for path in folder.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert found - {"__init__", "tasks"} == set(DOORS)  # the latter is what task queues have in common


def test_something_is_said_of_every_public_name() -> None:
    assert [f"{module}.{name}" for module, name, place in NAMED if len(said(place)) < 15] == []


def test_a_docstring_does_not_send_its_reader_to_another() -> None:
    """Whoever looks a name up reads it alone."""
    pointing = ("the same", "as above", "like the", "see above", "ditto")
    assert [name for _, name, place in NAMED if said(place).lower().startswith(pointing)] == []


# How a name is written


def shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, source: str, name: str) -> str:
    """A name of a module with this source, as a page writes it."""
    from tests.reference import source as reading

    (tmp_path / "semel_like.py").write_text(source)
    monkeypatch.setattr(reading, "SOURCE", tmp_path)
    reading.parsed.cache_clear()
    reading.defined.cache_clear()
    place = reading.find("semel_like", name)
    assert place is not None
    [made] = laid_out([written(place, set())])
    ast.parse(made)
    return made


LISTED = '''
class Rules:
    def get(self, key: "str | int") -> Steps["Thing"]:
        """Read it."""

class Methods:
    get = Driven(made(Rules.get))

class Sync(Methods, SyncFacade):
    """Things."""

class Waiting(Methods, AsyncFacade):
    """Things."""

class AsyncFacade: ...
'''


def test_a_listed_method_is_shown_as_its_callers_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    method = 'def get(self, key: str | int) -> Thing:\n        """Read it."""'
    assert shown(tmp_path, monkeypatch, LISTED, "Sync") == f"class Sync(SyncFacade):\n    {method}"
    assert shown(tmp_path, monkeypatch, LISTED, "Waiting") == f"class Waiting:\n    async {method}"


FIELDS = '''
class Thing(Struct):
    """A thing."""

    size: int = 0
    """How large it is."""
    _hidden: int = 0

    def __init__(self) -> None:
        self.name: "str" = ""
        self._secret: str = ""

    def weigh(self) -> float: return 0.0
    def _shake(self) -> None: ...
'''


def test_a_class_is_shown_with_its_public_fields_attributes_and_methods(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(tmp_path, monkeypatch, FIELDS, "Thing") == (
        'class Thing(Struct):\n    size: int = 0\n    """How large it is."""\n    name: str\n'
        "    def __init__(self) -> None: ...\n    def weigh(self) -> float: ..."
    )
