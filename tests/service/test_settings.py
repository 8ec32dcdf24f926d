"""Settings: a file, the environment over it, options over both; a refusal names the setting and its place."""

import stat
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any, get_type_hints

import pytest

import semel
from semel.apps.configuration import gather
from semel.apps.keyfile import secrets_of
from semel.apps.ledgers import url_of
from semel.apps.registry import APPS, find
from semel.apps.settings import from_environment
from semel.errors import InvalidOption, StoreUnavailable
from semel.service.runtime import Runtime
from semel.service.settings import ServiceSettings, settings
from semel.service.workers import AppWorkers
from tests.service import echo
from tests.service.kit import opened, register, served, told

DIGEST = "a" * 64
QUEUE = "https://sqs.eu-north-1.amazonaws.com/123456789012/orders"


def test_without_any_settings_there_are_those_that_serve_locally() -> None:
    chosen = settings(gather(None, {}))
    assert chosen == ServiceSettings()
    assert (chosen.semel.url, chosen.service.host, chosen.service.port) == (
        "sqlite:///semel.db",
        "127.0.0.1",
        8000,
    )


def test_the_environment_wins_over_the_file_and_options_over_both(tmp_path: Path) -> None:
    file = tmp_path / "semel.toml"
    file.write_text('[semel]\nurl = "memory:"\nenv = "prod"\n[service]\nport = 1\nworkers = 1\nhost = "h"\n')
    env = {"SEMEL_URL": "sqlite:///x.db", "SEMEL_SERVICE__PORT": "2", "SEMEL_SERVICE__WORKERS": "3"}
    chosen = settings(gather(str(file), env, {("service", "workers"): 4}))
    assert (chosen.semel.url, chosen.semel.env) == ("sqlite:///x.db", "prod")
    assert (chosen.service.host, chosen.service.port, chosen.service.workers) == ("h", 2, 4)


def test_a_text_of_the_environment_is_what_its_setting_takes() -> None:
    env = {
        "SEMEL_SERVICE__OPEN_METRICS": "true",
        "SEMEL_SERVICE__READY_TIMEOUT": "0.5",
        "SEMEL_TOKENS__OPS__SCOPES": "metrics, admin",
        "SEMEL_TOKENS__OPS__SHA256": DIGEST,
        "SEMEL_SEMEL__ENCRYPTION__KEYS": '{"k": "AAAA"}',
        "SEMEL_GATES__NIGHT__RULES": '[{"rule": "shadow"}]',
        # Those of other programs.
        "SEMEL_SCOPE": "north",
        "SEMEL_TEST_REDIS_URL": "redis://",
    }
    chosen = settings(gather(None, env))
    assert chosen.service.open_metrics is True
    assert chosen.service.ready_timeout == 0.5
    assert chosen.tokens["ops"].scopes == ["metrics", "admin"]
    assert chosen.semel.encryption.keys == {"k": "AAAA"}
    assert chosen.gates["night"].rules == [{"rule": "shadow"}]


FILE = " in semel.toml: "


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("[service]\nprot = 1", {}, f"service.prot{FILE}there is no such setting; did you mean port?"),
        ("[sevrice]\nport = 1", {}, f"sevrice{FILE}there is no such setting; did you mean service?"),
        ("[service]\nqq = 1", {}, f"service.qq{FILE}there is no such setting; there are host, port, workers"),
        ("[service]\nport = 'x'", {}, f"service.port{FILE}Expected `int`, got `str`"),
        ("[service]\nport = 70000", {}, f"service.port{FILE}Expected `int` <= 65535"),
        ("[service]\nworkers = -1", {}, f"service.workers{FILE}Expected `int` >= 0"),
        ("[service]\nlog_format = 'xml'", {}, f"service.log_format{FILE}Invalid enum value 'xml'"),
        ("service = 1", {}, f"service{FILE}it is a section, with settings of its own"),
        ("tokens = 1", {}, f"tokens{FILE}it is a section for each name: [tokens.NAME]"),
        ("[tokens.ops]\nscopes = ['all']", {}, f"tokens.ops.scopes{FILE}Invalid enum value 'all'"),
        ("[service]\nstop_timeout = inf", {}, f"service.stop_timeout{FILE}Expected `float` <= "),
        ("[inbox.x]\nlease = 0", {}, f"inbox.x.lease{FILE}Expected `float` > 0.0"),
        (
            "",
            {"SEMEL_SERVICE__PORT": "eighty"},
            "service.port in the environment variable SEMEL_SERVICE__PORT: Expected `int`, got `str`",
        ),
        (
            "",
            {"SEMEL_SERVICE__PROT": "80"},
            "service.prot in the environment variable SEMEL_SERVICE__PROT: there is no such setting",
        ),
        (
            "service = 1",
            {"SEMEL_SERVICE__PORT": "80"},
            "service.port in the environment variable SEMEL_SERVICE__PORT: what is above it is no section",
        ),
    ],
)
def test_what_cannot_be_read_is_refused_by_name_and_place(
    text: str, env: dict[str, str], message: str
) -> None:
    with pytest.raises(InvalidOption) as error:
        settings(told(text, env))
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[tokens.a]\nscopes = []", f"tokens.a{FILE}it has either a token or the sha256 of one"),
        (
            f"[tokens.a]\ntoken = 'x'\nsha256 = '{DIGEST}'",
            f"tokens.a{FILE}it has either a token or the sha256",
        ),
        ("[tokens.a]\ntoken = 'short'", f"tokens.a.token{FILE}it can be guessed"),
        ("[tokens.a]\nsha256 = 'abc'", f"tokens.a.sha256{FILE}it is no SHA-256 in hex"),
        (
            f"[tokens.a]\nsha256 = '{DIGEST}'\n[tokens.b]\nsha256 = '{DIGEST}'",
            f"tokens.b{FILE}another token is the same",
        ),
        ("[gates.g]", f"gates.g{FILE}a gate without rules would allow everything; give it some, such as "),
        ("[gates.g]\nttl = 60\nrules = []", f"gates.g{FILE}a gate without rules would allow everything"),
        (
            "[gates.g]\nrules = [{rule = 'cup'}]",
            f"gates.g.rules{FILE}rule = 'cup' is none; it is one of quiet_",
        ),
        ("[gates.g]\nrules = [{rule = 'shadow', x = 1}]", f"gates.g.rules{FILE}shadow has no x"),
        (
            "[gates.g]\nrules = [{rule = 'cap', counter = 'c', cap = 1, per = 'year'}]",
            f"gates.g.rules{FILE}per = 'year' is none",
        ),
        (
            "[gates.g]\nrules = [{rule = 'cap', counter = 'c', cap = 1, zone = 'Mars'}]",
            f"gates.g.rules{FILE}there is no time zone 'Mars'",
        ),
        ("[gates.g]\nrules = [{rule = 'cap', counter = 'c'}]", f"gates.g.rules{FILE}"),
        ("[gates.g]\nrules = [{rule = ['cap']}]", f"gates.g.rules{FILE}rule = ['cap'] is none"),
        (
            "[gates.g]\nrules = [{rule = 'cap', counter = 'c', cap = 1, per = ['day']}]",
            f"gates.g.rules{FILE}per = ['day'] is none",
        ),
        (
            "[gates.g]\nrules = [{rule = 'cap', counter = 5, cap = 1}]",
            f"gates.g.rules{FILE}counter = 5: Expected `str`",
        ),
        (
            "[gates.g]\nrules = [{rule = 'kill_switch', switch = 's', stops_when = 'on'}]",
            f"gates.g.rules{FILE}stops_when = 'on': Expected `bool`",
        ),
        ("[gates.g]\nrules = [{rule = 'cooldown', name = 'x{', span = 1}]", f"gates.g.rules{FILE}'x{{'"),
        ("[gates.g]\ntrace = 'x{'", f"gates.g.trace{FILE}'x{{'"),
        ("[inbox.quilt]\nlease = 1", f"inbox.quilt{FILE}there is no such app; there are quill, support"),
        ("[semel]\nurl = 'mysql://x'", f"semel.url{FILE}'mysql://x' names no store"),
        ("[semel]\nurl = 'sqlite://'", f"semel.url{FILE}'sqlite://' names no file"),
        ("[semel]\nenv = ''", f"semel.env{FILE}an environment must have a name"),
        ("[service]\npublic_url = 'shop.example'", f"service.public_url{FILE}write https:// and the host"),
        ("[service]\npublic_url = 'https://x.example/p'", f"service.public_url{FILE}write https:// and the"),
        ("[tokens.a]\ntoken = 'with a blank that is lost'", f"tokens.a.token{FILE}no header can carry it"),
        (f"[tokens.a]\ntoken = '{'å' * 16}'", f"tokens.a.token{FILE}no header can carry it"),
        (f"[tokens.a]\nsha256 = '{sha256(b'').hexdigest()}'", f"tokens.a.sha256{FILE}it is the hash of no"),
        (
            f'[tokens.a]\nsha256 = "{DIGEST}"\nscope = "\\u0001"',
            f"tokens.a.scope{FILE}a scope must not contain control characters",
        ),
        ("[semel]\nsecret = 'guess me'", f"semel.secret{FILE}it can be guessed: use 32"),
        ("[semel.encryption]\nactive = 'k'", f"semel.encryption.active{FILE}it names a key, and"),
        ("[apps.quilt]", f"apps.quilt{FILE}there is no such app; there are quill, support"),
        ("[apps.echo]\nlimit = 'x'", f"apps.echo.limit{FILE}Expected `int`"),
        ("[apps.echo]\nenabled = 'maybe'", f"apps.echo.enabled{FILE}Expected `bool`"),
        ("[apps.echo]\nword = 1", f"apps.echo.word{FILE}there is no such setting; did you mean words?"),
        ("[apps.echo]\nlimit = 10", f"apps.echo.limit{FILE}it is at most 9"),
        (
            "[semel]\nurl = 'sqlite:///x.db'\nsecret = 'a'\nsecret_file = 'b'",
            f"semel.secret{FILE}it is set, and",
        ),
        ("[semel]\nsecret_file = 'nowhere'", f"semel.secret_file{FILE}nowhere cannot be read: No such file"),
        (
            "[semel.encryption.keys]\nk = '%%'",
            f"semel.encryption.keys{FILE}k is no base64",
        ),
        ("[service]\nshare = 0", f"service.share{FILE}Expected `float` > 0.0"),
        ("[service]\nshare = 2", f"service.share{FILE}Expected `float` <= 1.0"),
        ("[apps.echo]\n[inbox.echo]\nqueue = 'x'", f"inbox.echo.queue{FILE}'x' is not the URL of a queue"),
        (
            f"[apps.echo]\n[inbox.echo]\nqueue = '{QUEUE}.fifo'\ndead_letters = 'x'",
            f"inbox.echo.dead_letters{FILE}'x' is not the URL of a queue",
        ),
        (f"[apps.echo]\n[inbox.echo]\nqueue = '{QUEUE}'", f"inbox.echo.queue{FILE}{QUEUE} keeps no order"),
        ("[apps.echo]\n[inbox.echo]\nshards = 0", f"inbox.echo.shards{FILE}Expected `int` >= 1"),
        ("[apps.echo]\n[inbox.echo]\nshards = 1001", f"inbox.echo.shards{FILE}Expected `int` <= 1000"),
        (
            f"[apps.echo]\n[inbox.echo]\nqueue = '{QUEUE}.fifo'\nshards = 2",
            f"inbox.echo.shards{FILE}an inbox on SQS has no shards",
        ),
        (
            "[apps.support]\nwebhook_token = 'a token with blanks'",
            f"apps.support.webhook_token{FILE}a secret of Bearer is printable ASCII without blanks",
        ),
        (
            f"[apps.household]\nsecret_token = '{DIGEST}'\ncap = 10000000000000000",
            f"apps.household.cap{FILE}it is at least 1",
        ),
        (
            "[semel.encryption.keys]\nk = 'AAAA'",
            f"semel.encryption.keys{FILE}the key 'k' must be 16, 24 or 32",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name_and_place(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with pytest.raises(InvalidOption) as error, served(text, tmp_path):
        pass
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[apps.echo]\n[inbox.echo]\nttl = 5", f"inbox.echo.ttl{FILE}ttl (5 s)"),
        ("[apps.echo]\n[service]\nworkers = 9999", f"service.workers{FILE}workers is a whole number"),
        ("[apps.echo]\n[inbox.echo]\nworkers = 9999", f"inbox.echo.workers{FILE}workers is"),
        (
            f"[apps.support]\nwebhook_token = '{DIGEST}'\nevents_ttl = 5",
            f"apps.support{FILE}ttl (5 s) is shorter",
        ),
    ],
)
def test_options_of_an_inbox_that_cannot_work_are_refused_before_anything_begins(
    text: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    with opened(text, tmp_path) as runtime, pytest.raises(InvalidOption) as error:
        AppWorkers(runtime)
    assert str(error.value).startswith(message)


@pytest.mark.parametrize(
    ("app", "setting"),
    [
        ("quill", "aloware_token"),
        ("quill", "hubspot_secret"),
        ("support", "webhook_token"),
        ("household", "secret_token"),
        ("probe", "token"),
    ],
)
def test_what_webhooks_are_known_by_is_as_long_as_a_token(app: str, setting: str, tmp_path: Path) -> None:
    for given in ("x" * 15, ["y" * 40, "x" * 15] if app == "quill" else "y"):
        text = f"[apps.{app}]\n{setting} = {given!r}\n"
        with pytest.raises(InvalidOption) as error, opened(text, tmp_path):
            pass
        assert str(error.value).startswith(f"apps.{app}.{setting}{FILE}it can be guessed: use at least 16")
        assert "xxx" not in str(error.value)
    with opened(f"[apps.{app}]\n{setting} = '{'x' * 16}'\n", tmp_path) as runtime:
        assert [one.name for one in runtime.apps] == [app]


@pytest.mark.parametrize("app", APPS)
def test_every_setting_that_is_refused_is_named_on_lambda_too(app: str) -> None:
    kind = find(app).kind.settings_type
    texts = str, str | list[str]
    for setting in [name for name, plain in get_type_hints(kind).items() if plain not in texts]:
        name = f"SEMEL_APPS__{app}__{setting}".upper()
        with pytest.raises(InvalidOption) as error:
            from_environment(kind, app, {name: "[{]"})
        assert str(error.value).startswith(f"apps.{app}.{setting}: ")
        assert str(error.value).endswith(f", in the environment variable {name}")


@pytest.mark.parametrize(
    ("content", "message"),
    [("[service", "is no TOML"), (b"\xff", "is no text in UTF-8"), (None, "cannot be read: No such file")],
)
def test_a_file_that_cannot_be_read_is_named(
    tmp_path: Path, content: str | bytes | None, message: str
) -> None:
    file = tmp_path / "semel.toml"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(InvalidOption, match=message) as error:
        gather(str(file), {})
    assert str(error.value).startswith(str(file))


# Secrets


def test_beside_an_sqlite_file_a_key_is_made_once_that_nobody_else_reads(tmp_path: Path) -> None:
    text, key = "[tokens.x]\nsha256 = '" + DIGEST + "'", tmp_path / "semel.db.key"
    with opened(text, tmp_path) as first:
        made = key.read_text()
        assert stat.S_IMODE(key.stat().st_mode) == 0o600
        name = first.s.pseudonym("ann@example.com")
        claim = first.s.ledger.claim("k")
        assert isinstance(claim, semel.Claimed)
        first.s.ledger.complete(claim, "ann@example.com")
    with opened(text, tmp_path) as second:
        assert key.read_text() == made
        assert second.s.pseudonym("ann@example.com") == name
        record = second.s.ledger.get("k")
        assert record is not None
        assert second.s.ledger.result(record) == "ann@example.com"
        assert b"ann@example.com" not in (record.result or b"")
    assert sorted(file.name for file in tmp_path.iterdir() if "key" in file.name) == ["semel.db.key"]


def test_processes_that_start_at_once_agree_on_one_key(tmp_path: Path) -> None:
    given = told(f"[semel]\nurl = 'sqlite:///{tmp_path}/semel.db'")
    with ThreadPoolExecutor(8) as pool:
        asks = [pool.submit(secrets_of, settings(given).semel, given) for _ in range(16)]
        assert len({ask.result().secret for ask in asks}) == 1
    assert [file.name for file in tmp_path.iterdir()] == ["semel.db.key"]


def test_a_key_that_others_can_read_is_pointed_out(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    key = tmp_path / "semel.db.key"
    key.write_text("a secret of somebody's")
    key.chmod(0o644)
    with opened("", tmp_path) as runtime:
        assert runtime.s.fingerprint([1]) == semel.connect(secret=b"a secret of somebody's").fingerprint([1])
    assert f"{key} can be read by others: chmod 600 it" in caplog.text


def test_a_key_file_that_is_empty_or_none_is_named(tmp_path: Path) -> None:
    key = tmp_path / "semel.db.key"
    key.touch(0o600)
    with pytest.raises(InvalidOption, match=rf"^semel\.secret: {key} can be guessed"), opened("", tmp_path):
        pass
    key.unlink()
    key.mkdir()
    with pytest.raises(InvalidOption, match=rf"^semel\.secret: {key} cannot be read"), opened("", tmp_path):
        pass


def test_the_secret_and_the_encryption_key_are_not_the_same(tmp_path: Path) -> None:
    given = told("[semel]\nurl = 'memory:'\nsecret = 'the secret of this test'")
    secrets = secrets_of(settings(given).semel, given)
    assert secrets.secret == b"the secret of this test"
    assert secrets.encryption is not None
    assert secrets.encryption.active.startswith("derived-")
    other = told("[semel]\nurl = 'memory:'\nsecret = 'another secret of it'")
    assert secrets_of(settings(other).semel, other).encryption.active != secrets.encryption.active


def test_encryption_can_be_left_out_and_keys_can_be_given(tmp_path: Path) -> None:
    plain = told("[semel]\nsecret = 'the secret of this test'\nencrypt = false")
    assert secrets_of(settings(plain).semel, plain).encryption is None
    old, new = (f"{letter * 43}=" for letter in "AB")
    text = f"[semel.encryption]\nactive = 'new'\nkeys.old = '{old}'\nkeys.new = '{new}'"
    keys = told(f"[semel]\nsecret = 'the secret of this test'\n{text}")
    assert secrets_of(settings(keys).semel, keys).encryption.active == "new"


def test_a_secret_may_lie_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text("a secret from a file\n")
    given = told(f"[semel]\nurl = 'memory:'\nsecret_file = '{file}'")
    assert secrets_of(settings(given).semel, given).secret == b"a secret from a file"


def secrets_dir(folder: Path, **files: str | bytes) -> dict[str, str]:
    """What names a folder with these files, as platforms mount secrets."""
    for name, value in files.items():
        (folder / name).write_bytes(value if isinstance(value, bytes) else value.encode())
    return {"SEMEL_SECRETS_DIR": str(folder)}


def test_a_file_named_as_a_variable_sets_what_the_variable_would(tmp_path: Path) -> None:
    files = {"SEMEL_URL": "memory:\n", "SEMEL_TOKENS__OPS__TOKEN": "  blanks count too\r\n", "password": "no"}
    env = secrets_dir(tmp_path, **files) | {"SEMEL_TOKENS__OPS__SCOPES": "metrics"}
    (tmp_path / "SEMEL_SERVICE__PORT").mkdir()  # as Kubernetes has folders beside what it mounts
    given = gather(None, env)
    chosen = settings(given)
    assert chosen.semel.url == "memory:"
    assert (chosen.tokens["ops"].token, chosen.tokens["ops"].scopes) == ("  blanks count too", ["metrics"])
    assert given.where(("semel", "url")) == f" in the file {tmp_path / 'SEMEL_URL'}"


def test_such_a_file_wins_over_the_settings_file_and_a_variable_over_both(tmp_path: Path) -> None:
    toml, folder = tmp_path / "semel.toml", tmp_path / "secrets"
    toml.write_text('[semel]\nurl = "memory:"\nenv = "toml"\nsecret = "of the settings file"\n')
    folder.mkdir()
    env = secrets_dir(folder, SEMEL_URL="sqlite:///file.db", SEMEL_ENV="file") | {"SEMEL_ENV": "variable"}
    chosen = settings(gather(str(toml), env)).semel
    assert (chosen.url, chosen.env, chosen.secret) == (
        "sqlite:///file.db",
        "variable",
        "of the settings file",
    )


def test_a_folder_of_secrets_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match=r"^SEMEL_SECRETS_DIR: .*nowhere cannot be read: No such file"):
        gather(None, {"SEMEL_SECRETS_DIR": str(tmp_path / "nowhere")})
    with pytest.raises(InvalidOption, match="SEMEL_SECRET is no text in UTF-8"):
        gather(None, secrets_dir(tmp_path, SEMEL_SECRET=b"\xff"))


def test_a_wrong_value_in_such_a_file_is_named_by_its_file_and_not_shown(tmp_path: Path) -> None:
    env = secrets_dir(tmp_path, SEMEL_SERVICE__PORT="hunter2")
    with pytest.raises(InvalidOption, match=r"^service\.port in the file .*SEMEL_SERVICE__PORT: ") as error:
        settings(gather(None, env))
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("name", ["SEMEL_URL_FILE", "SEMEL_ENV_FILE"])
def test_what_other_images_call_a_variables_file_is_not_ignored(name: str) -> None:
    with pytest.raises(InvalidOption, match=f"there is no {name}: put the value into a file named SEMEL_"):
        gather(None, {name: "/run/secrets/url"})


def test_elsewhere_an_app_that_needs_a_secret_asks_for_it(tmp_path: Path) -> None:
    given = told("[semel]\nurl = 'memory:'\n[apps.support]\nwebhook_token = 'token-of-richpanel-x'")
    with pytest.raises(InvalidOption, match=r"^semel\.secret: it is not set, and the app support needs it"):
        Runtime(given)


def test_a_database_in_a_folder_that_is_not_there_is_named_and_nothing_is_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="there is no folder"):
        Runtime(told(f"[semel]\nurl = 'sqlite:///{tmp_path}/nowhere/semel.db'"))
    assert not list(tmp_path.iterdir())


# Apps


def test_only_apps_that_are_enabled_are_opened_and_an_option_may_choose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(monkeypatch)
    text = "[apps.echo]\nenabled = false"
    with opened(text, tmp_path) as runtime:
        assert runtime.apps == []
    given = told(
        text, {"SEMEL_APPS__ECHO__ENABLED": "true", "SEMEL_APPS__ECHO__WORDS": "a,b", "SEMEL_URL": "memory:"}
    )
    runtime = Runtime(given)
    [echo] = [one.app for one in runtime.apps]
    assert echo.settings.words == ["a", "b"]
    assert echo.s.scope == "echo"
    runtime.close()
    assert echo.closed
    with pytest.raises(InvalidOption, match="--app ehco: there is no such app"):
        Runtime(told("[semel]\nurl = 'memory:'"), ("ehco",))


def test_two_apps_do_not_share_an_address(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    register(monkeypatch)
    with (
        pytest.raises(InvalidOption, match=r"apps.other in .*: /webhooks/echo is an address of echo already"),
        opened("[apps.echo]\n[apps.other]\nat = 'tests.service.echo:Echo'", tmp_path),
    ):
        pass


def test_in_dynamodb_an_app_has_the_table_that_was_there_first() -> None:
    url = "dynamodb://eu-north-1/mine?endpoint=http://127.0.0.1:8000"
    told_url = url_of("quill", url)
    assert told_url == "dynamodb://eu-north-1?endpoint=http%3A%2F%2F127.0.0.1%3A8000&layout=quill"
    from semel.stores.dynamodb.address import parse

    assert parse(told_url).tables[0].name == "quill"
    assert parse(told_url).endpoint == "http://127.0.0.1:8000"
    assert parse(url_of("probe", "dynamodb:")).tables[0].name == "probe"


def test_what_an_app_refuses_without_naming_it_is_named_by_its_section(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refusing(*_: Any) -> None:
        raise InvalidOption("nothing of this can work")

    register(monkeypatch)
    monkeypatch.setattr(echo.Echo, "__init__", refusing)
    text = "[apps.echo]\nenabled = true"
    with pytest.raises(InvalidOption, match=r"^apps\.echo in semel\.toml: nothing"), opened(text, tmp_path):
        pass
