"""Applications of yours: where they are found, what they have to have, and how they are run."""

import hmac
import importlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from semel.apps import registry
from semel.apps.configuration import Configuration, gather
from semel.apps.functions import Functions
from semel.apps.importing import imported
from semel.errors import InvalidOption
from semel.service.runtime import Runtime
from tests.apps.kit import Service
from tests.servers.running import until
from tests.service.kit import client_of

numbers = itertools.count()

APP = """
import msgspec
from semel.doors.inbox import Message
from semel.doors.webhooks import Bearer, Ingress, Provider

class Settings(msgspec.Struct, kw_only=True):
    token: str = "a-token-that-nobody-guesses"
    limit: int = 3

class Own:
    settings_type = Settings

    def __init__(self, s, inbox, settings):
        self.s, self.settings = s, settings
        provider = Provider("own", Bearer, lambda notice: notice.payload["id"])
        message = lambda notice: Message(notice.payload["id"], notice.payload)
        self.hooks = {"/webhooks/own": Ingress(s, provider, settings.token, inbox, message)}

    def handle(self, message):
        self.s.documents.put(message.key, {"seen": True})

    def close(self):
        pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., str]]:
    """Writes modules of names of their own into the folder of the settings, which is forgotten at the end."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    made = list[str]()

    def write(text: str = APP, folder: Path = tmp_path) -> str:
        name = f"own_app_{next(numbers)}"
        (folder / f"{name}.py").write_text(text)
        importlib.invalidate_caches()
        made.append(name)
        return name

    yield write
    for name in made:
        sys.modules.pop(name, None)


def written(folder: Path, text: str) -> Configuration:
    """Settings from a file in this folder, on a store in memory."""
    (folder / "semel.toml").write_text(f"[semel]\nurl = 'memory:'\n{text}")
    return gather(str(folder / "semel.toml"), {})


def refusal(folder: Path, text: str) -> str:
    """Why a runtime with these settings cannot be opened."""
    with pytest.raises(InvalidOption) as caught:
        Runtime(written(folder, text))
    return str(caught.value).replace(str(folder / "semel.toml"), "semel.toml")


# Where they are found


def test_an_app_of_yours_is_found_beside_the_settings_and_mounted(
    tmp_path: Path, module: Callable[..., str]
) -> None:
    runtime = Runtime(written(tmp_path, f"[apps.own]\nat = '{module()}:Own'\nlimit = 7"))
    try:
        [mounted] = runtime.apps
        assert (mounted.name, mounted.works) == ("own", True)
        assert mounted.app.settings.limit == 7
        assert mounted.app.s.scope == "own"
        with client_of(runtime) as client:
            told = {"Authorization": "Bearer a-token-that-nobody-guesses"}
            assert client.post("/webhooks/own", json={"id": "1"}, headers=told).status_code == 200
            assert client.get("/health/ready").json()["apps"] == ["own"]
            assert "/webhooks/own" in client.get("/openapi.json").json()["paths"]
        assert mounted.inbox.waiting() == 1
    finally:
        runtime.close()


def test_what_is_installed_comes_before_what_stands_beside_the_settings(
    tmp_path: Path, module: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed, beside = tmp_path / "installed", tmp_path / "beside"
    installed.mkdir()
    beside.mkdir()
    name = module(APP.replace("limit: int = 3", "limit: int = 4"), installed)
    (beside / f"{name}.py").write_text(APP)
    monkeypatch.syspath_prepend(installed)
    runtime = Runtime(written(beside, f"[apps.own]\nat = '{name}:Own'"))
    assert runtime.apps[0].app.settings.limit == 4
    runtime.close()
    assert sys.path[-1] == str(beside), "nothing else is looked for there first"
    (beside / f"{name}.py").write_text(APP + "\nclass Other(Own): pass\n")
    why = refusal(beside, f"[apps.own]\nat = '{name}:Other'")
    assert f"it is {installed / name}.py, which comes before {beside / name}.py: give yours another" in why


def test_an_installed_package_says_by_an_entry_point_which_apps_it_has(
    tmp_path: Path, module: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module(APP, tmp_path)
    _install(tmp_path, "shop", f"own = {name}:Own")
    monkeypatch.syspath_prepend(tmp_path)
    assert registry.find("own").kind.__name__ == "Own"
    runtime = Runtime(written(tmp_path, "[apps.own]\nlimit = 5"))
    assert runtime.apps[0].app.settings.limit == 5
    runtime.close()
    assert "probe, own" in refusal(tmp_path, "[apps.nobody]")
    _install(tmp_path, "other_shop", f"own = {name}:Other")
    several = refusal(tmp_path, "[apps.own]")
    assert several == (
        f"apps.own.at: several packages have an app of this name: say which of {name}:Other, {name}:Own"
    )
    runtime = Runtime(written(tmp_path, f"[apps.own]\nat = '{name}:Own'"))
    runtime.close()


def _install(folder: Path, package: str, line: str) -> None:
    """What pip leaves behind of a package with an entry point."""
    about = folder / f"{package}-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(f"[semel.apps]\n{line}\n")
    importlib.invalidate_caches()


def test_functions_that_settings_name_are_found_beside_them_too(
    tmp_path: Path, module: Callable[..., str]
) -> None:
    """`decide`, `lookup`, `classifier` and `responder`."""
    name = module("def mine(*_): return None")
    text = f"""
        secret = "{"x" * 32}"
        [apps.support]
        webhook_token = "what-richpanel-sends"
        decide = "{name}:mine"
        lookup = "{name}:mine"
        [apps.household]
        secret_token = "what-telegram-shows"
        responder = "{name}:mine"
        classifier = "{name}:"""
    Runtime(written(tmp_path, f'{text}mine"')).close()
    why = refusal(tmp_path, f'{text}ours"')
    words = f"{name}:ours cannot be imported: {name} has no ours"
    assert why == f"apps.household.classifier in semel.toml: {words}"


# What they have to have

LACKS = {
    "settings_type": (("settings_type = Settings", ""), "has no settings_type, a msgspec.Struct"),
    "settings": (("settings_type = Settings", "settings_type = dict"), "has no settings_type"),
    "reserved": (("limit: int", "enabled: bool"), "has a setting 'enabled', which the service reads"),
    "init": (("(self, s, inbox, settings)", "(self, s)"), "is not made from (s, inbox, settings)"),
    "hooks": (("self.hooks = ", "hooks = "), "Own has no hooks"),
    "paths": (('"/webhooks/own"', '"webhooks"'), "Own.hooks has 'webhooks': an address begins with /"),
    "receive": (
        ("Ingress(s, provider, settings.token, inbox, message)", "1"),
        "has no method receive()",
    ),
    "close": (("def close", "def clothe"), "has no method close()"),
    "handle": (("def close", "handle = 1\n    def close"), "has no method handle()"),
    "facts": (("def close", "needs_secret = 1\n    def close"), "Expected `bool`, got `int`"),
    "class": (("class Own", "Own = 1\nclass Other"), "is no class"),
    "name": (("class Own", "class Owm"), "has no Own; did you mean Owm?"),
    "import": (
        ("import msgspec", "import no_such_library"),
        "No module named 'no_such_library', at own_app_",
    ),
    "syntax": (("class Own", "clas Own"), "SyntaxError: invalid syntax (own_app_"),
    "raises": (
        ("class Own", "raise RuntimeError('planted')\nclass Own"),
        "RuntimeError: planted, at own_app_",
    ),
}


@pytest.mark.parametrize("case", LACKS)
def test_what_a_class_lacks_is_named_with_the_setting(
    case: str, tmp_path: Path, module: Callable[..., str]
) -> None:
    change, words = LACKS[case]
    why = refusal(tmp_path, f"[apps.own]\nat = '{module(APP.replace(*change))}:Own'")
    assert why.startswith("apps.own.at in semel.toml: ")
    assert words in why


@pytest.mark.parametrize(
    ("section", "words"),
    [
        (
            "[apps.own]",
            "apps.own in semel.toml: there is no such app; there are quill, support, househ",
        ),
        ("[apps.own]", 'one of your own is found by at = "package.module:Class"'),
        ("[apps.own]\nat = 'no_such_module:Own'", "apps.own.at in semel.toml: no_such_module:Own cannot be "),
        ("[apps.own]\nat = 'no_such.module:Own'", "there is no module no_such among the installed packages"),
        (
            "[apps.own]\nat = 'own'",
            "apps.own.at in semel.toml: 'own' cannot be imported: write it as ",
        ),
        ("[apps.own]\nat = 3", "apps.own.at in semel.toml: Expected `str`, got `int`"),
        ("[apps.OWN]", "apps.OWN in semel.toml: a name has small letters and digits"),
    ],
)
def test_an_app_that_is_not_found_is_told_with_the_way_out(section: str, words: str, tmp_path: Path) -> None:
    assert words in refusal(tmp_path, section)


def test_a_setting_that_an_app_of_yours_does_not_know_is_refused(
    tmp_path: Path, module: Callable[..., str]
) -> None:
    at = f"[apps.own]\nat = '{module()}:Own'\n"
    assert refusal(tmp_path, at + "limti = 3") == (
        "apps.own.limti in semel.toml: there is no such setting; did you mean limit?"
    )
    assert (
        refusal(tmp_path, at + "limit = 'many'") == "apps.own.limit in semel.toml: Expected `int`, got `str`"
    )


def test_nothing_is_imported_that_is_no_place_in_a_module() -> None:
    for at in ("", "os", "os:", ":x", "os:path.join", "../x:y", "os.system('x'):y"):
        with pytest.raises(InvalidOption, match=r"write it as package\.module:function"):
            imported(at, "function")


# How they are run


def test_functions_have_the_ledger_that_the_service_has(
    tmp_path: Path, module: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    name = module()
    runtime = Runtime(written(tmp_path, f"[apps.own]\nat = '{name}:Own'"))
    monkeypatch.setenv("SEMEL_URL", f"sqlite:///{tmp_path / 'semel.db'}")
    functions = Functions.of("own", registry.find("own", f"{name}:Own").kind)
    try:
        assert functions.s.scope == runtime.apps[0].s.scope == "own"
        assert functions.s.ledger.steps.name("k") == runtime.apps[0].s.ledger.steps.name("k")
    finally:
        functions.close()
        runtime.close()


EXAMPLE = Path(__file__).parents[2] / "examples" / "order_notices"


def test_the_example_is_served_from_its_folder(tmp_path: Path) -> None:
    """A paid order is delivered twice, the warehouse is told once, and a token may look."""
    for name in ("notices.py", "semel.toml"):
        (tmp_path / name).write_text((EXAMPLE / name).read_text())
    with Service(tmp_path, (tmp_path / "semel.toml").read_text()) as service:
        body = json.dumps({"event": "order.paid", "number": "1001", "items": 2}).encode()
        signature = hmac.new(b"what-the-shop-signs-with", body, "sha256").hexdigest()
        for _ in range(2):
            told = ask(service, "/webhooks/shop", body, {"X-Shop-Signature": signature})
            assert told == (200, {"received": 1, "accepted": 1, "duplicates": 0, "ignored": 0, "failed": 0})
        shown = {"Authorization": "Bearer a-token-that-nobody-guesses"}
        assert until(lambda: ask(service, "/apps/notices/orders/1001", None, shown)[0] == 200)
        assert ask(service, "/apps/notices/orders/1001", None, shown)[1] == {"items": 2, "receipt": "kept"}
        assert ask(service, "/apps/notices/orders/1001", None, {})[0] == 401


def ask(service: Service, path: str, body: bytes | None, headers: dict[str, str]) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    with httpx.Client(trust_env=False, timeout=60) as client:
        answer = client.request(method, service.url + path, content=body, headers=headers)
    return answer.status_code, answer.json()
