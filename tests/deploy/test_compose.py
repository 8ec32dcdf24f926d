"""The compose files: they have the form of compose, and their commands run on the stores that they name."""

import os
import shutil
import signal
import stat
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import psycopg
import pytest
import yaml  # type: ignore[import-untyped]

from semel.service.settings import ServiceSection
from tests.deploy.image import DEPLOY, instructions, running, settings_of, words
from tests.servers.dynamodb import BINARY, VERSION
from tests.servers.running import HOST, IMPORTS, free_port, until

COMPOSE = DEPLOY / "compose"
FILES = sorted(COMPOSE.glob("*.yaml"))
ENGINE = COMPOSE / "dynamodb.Dockerfile"


def loaded(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def test_there_is_one_for_each_store_that_needs_a_server() -> None:
    assert [file.stem for file in FILES] == ["dynamodb", "postgres"]


# What they say


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_has_the_form_that_the_specification_gives(file: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec", str(file)]
    checked = subprocess.run(command, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_the_service_starts_when_its_store_answers_and_has_its_tables(file: Path) -> None:
    services = loaded(file)["services"]
    [store] = services.keys() - {"semel", "provision"}
    healthy = {store: {"condition": "service_healthy"}}
    assert services["provision"]["depends_on"] == healthy
    done = {"provision": {"condition": "service_completed_successfully"}}
    assert services["semel"]["depends_on"] == healthy | done
    checks = [name for name, _ in instructions(ENGINE) if name == "HEALTHCHECK"]
    assert "healthcheck" in services[store] or (
        services[store]["build"]["dockerfile"] == ENGINE.name and checks
    )


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_tables_are_made_by_the_image_and_the_settings_that_use_them(file: Path) -> None:
    services = loaded(file)["services"]
    for name in ("image", "build", "environment", "volumes", "secrets"):
        assert services["provision"][name] == services["semel"][name]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_it_is_given_longer_to_stop_than_it_takes(file: Path) -> None:
    grace = loaded(file)["services"]["semel"]["stop_grace_period"]
    assert int(grace.removesuffix("s")) > ServiceSection().stop_timeout


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_only_this_machine_reaches_it_and_nobody_reaches_its_store(file: Path) -> None:
    services = loaded(file)["services"]
    ports = {name: service["ports"] for name, service in services.items() if "ports" in service}
    assert ports == {"semel": ["127.0.0.1:8000:8000"]}


# Their secrets


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    """The folder of the compose files, with secrets made by its own script."""
    folder = Path(shutil.copytree(COMPOSE, tmp_path / "compose", ignore=shutil.ignore_patterns("secrets")))
    subprocess.run(["sh", folder / "make-secrets.sh"], check=True)
    return folder


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_every_secret_is_a_file_that_the_script_makes(folder: Path, file: Path) -> None:
    made = loaded(file)
    files = {name: folder / secret["file"] for name, secret in made["secrets"].items()}
    assert all(one.read_text() for one in files.values())
    used = [name for service in made["services"].values() for name in service.get("secrets", [])]
    assert set(used) == set(files)


def test_secrets_are_long_differ_and_are_never_made_anew(folder: Path) -> None:
    before = {file.name: file.read_text() for file in (folder / "secrets").iterdir()}
    password = before["database_password"]
    assert urlsplit(before["SEMEL_URL"]).password == password
    random = [value for name, value in before.items() if name != "SEMEL_URL"]
    assert [len(value) for value in random] == [64] * 4
    assert len(set(random)) == 4
    subprocess.run(["sh", folder / "make-secrets.sh"], check=True)
    assert {file.name: file.read_text() for file in (folder / "secrets").iterdir()} == before


def test_nobody_else_enters_the_folder_of_secrets_and_containers_read_the_files(folder: Path) -> None:
    secrets = folder / "secrets"
    assert stat.S_IMODE(secrets.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in secrets.iterdir()} == {0o644}


# Their commands


class Services:
    """The services of a compose file, whose commands run here as they would in containers."""

    def __init__(self, file: Path, folder: Path) -> None:
        self._services, self._secrets = loaded(file)["services"], loaded(file)["secrets"]
        self._folder = folder
        self.port = free_port()

    def environment(self, name: str) -> dict[str, str]:
        """What a service of semel's has: of the image, of the file, and of this machine."""
        mounts = dict(each.split(":")[1::-1] for each in self._services[name]["volumes"])
        env = settings_of(DEPLOY / "Dockerfile") | self._services[name]["environment"]
        env["SEMEL_CONFIG"] = str(self._folder / mounts[env["SEMEL_CONFIG"]])
        assert env["SEMEL_SECRETS_DIR"] == "/run/secrets"
        env["SEMEL_SECRETS_DIR"] = str(self._mounted(name))
        own = {"SEMEL_SERVICE__HOST": HOST, "SEMEL_SERVICE__PORT": str(self.port), "PYTHONPATH": IMPORTS}
        return env | own | {"PATH": str(Path(sys.executable).parent)}

    def _mounted(self, name: str) -> Path:
        """A folder with the secrets that a service is given, and no others."""
        place = self._folder / f"run-{name}"
        place.mkdir(exist_ok=True)
        for secret in self._services[name]["secrets"]:
            shutil.copy(self._folder / self._secrets[secret]["file"], place / secret)
        return place

    def command(self, name: str) -> list[str]:
        """The command of a service; the image's own, where the file has none."""
        steps = dict(instructions(DEPLOY / "Dockerfile"))
        return [*words(steps["ENTRYPOINT"]), *self._services[name].get("command", words(steps["CMD"]))]

    def check(self, name: str) -> list[str]:
        """The health check of a service."""
        _, *command = self._services[name]["healthcheck"]["test"]
        return [word.replace("/opt/semel", str(DEPLOY)) for word in command]


def tell_of_a_claim(services: Services, folder: Path) -> int:
    """The status of a claim, by the token that is a secret."""
    token = (folder / "secrets" / "SEMEL_TOKENS__SHOP__TOKEN").read_text()
    body = {"key": "charge:o-1", "token": "2b5f1c9a40d84b6f"}
    answer = httpx.post(
        f"http://{HOST}:{services.port}/v1/claims",
        json=body,
        headers={"Authorization": f"Bearer {token}"},
        timeout=60,
        trust_env=False,
    )
    return answer.status_code


def live_through(services: Services, folder: Path, change: dict[str, str]) -> None:
    """Start the service too early, see that it is not ready, make the tables, use it, and stop it."""
    env, check = services.environment("semel") | change, services.check("semel")
    with running(services.command("semel"), env, folder, folder / "log") as semel:
        assert until(lambda: "semel: http://" in semel.log, still=semel.is_running), semel.log
        assert until(lambda: semel.run(check).stdout.startswith("503 "), still=semel.is_running), semel.log
        early = semel.run(check)
        assert (early.returncode, "run: semel provision" in early.stdout) == (1, True), early.stdout
        made = semel.run(services.command("provision"))
        assert made.returncode == 0, made.stderr
        assert until(lambda: semel.run(check).returncode == 0, still=semel.is_running), semel.log
        again = semel.run(services.command("provision"))
        assert (again.returncode, again.stdout[:14]) == (0, "Nothing to do:"), again.stderr
        assert tell_of_a_claim(services, folder) == 201
        assert semel.stop(signal.SIGTERM) == 0, semel.log
        assert semel.run(check).returncode == 1


@pytest.fixture(name="database")
def _database(postgres: str) -> Iterator[str]:
    """The URL of a database that is new."""
    name = f"semel_{uuid.uuid4().hex}"
    with psycopg.connect(postgres, autocommit=True) as admin:
        admin.execute(f'CREATE DATABASE "{name}"')
        yield urlsplit(postgres)._replace(path=f"/{name}").geturl()
        admin.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_its_commands_run_on_postgresql(folder: Path, database: str) -> None:
    (folder / "secrets" / "SEMEL_URL").write_text(database)
    live_through(Services(COMPOSE / "postgres.yaml", folder), folder, {})


def test_its_commands_run_on_the_engine_that_its_own_command_starts(
    dynoxide: str, folder: Path, tmp_path: Path
) -> None:
    """The engine keeps what it has over a restart."""
    if not BINARY.exists():
        pytest.skip("the engine is another: SEMEL_TEST_DYNAMODB_URL names it")
    steps = dict(instructions(ENGINE))
    port, env = free_port(), {"PATH": str(BINARY.parent)}
    led = {"0.0.0.0": HOST, "8000": str(port), "/var/lib/dynoxide/dynamodb.db": str(tmp_path / "dynamodb.db")}
    command = [led.get(word, word) for word in (*words(steps["ENTRYPOINT"]), *words(steps["CMD"]))]
    check = [led.get(word, word) for word in words(steps["HEALTHCHECK"].partition("CMD ")[2])]
    services = Services(COMPOSE / "dynamodb.yaml", folder)
    url = services.environment("semel")["SEMEL_URL"].replace("http://dynamodb:8000", f"http://{HOST}:{port}")
    with running(command, env, tmp_path, tmp_path / "engine") as engine:
        assert until(lambda: engine.run(check).returncode == 0, still=engine.is_running), engine.log
        live_through(services, folder, {"SEMEL_URL": url})
        engine.stop()
        assert engine.run(check).returncode != 0
    with running(command, env, tmp_path, tmp_path / "engine") as engine:
        assert until(lambda: engine.run(check).returncode == 0, still=engine.is_running), engine.log
        own = services.environment("provision") | {"SEMEL_URL": url}
        kept = subprocess.run(
            [Path(sys.executable).with_name("semel"), "provision", "--check"],
            env=own | {"PATH": os.defpath},
            capture_output=True,
            text=True,
            check=False,
        )
        assert kept.returncode == 0, kept.stdout


def test_the_engine_is_the_one_that_the_tests_know() -> None:
    [install] = [value for name, value in instructions(ENGINE) if value.startswith("npm install")]
    assert install.endswith(f" @dynoxide/linux-x64@{VERSION}")
