"""The service behind a real nginx on the same machine, visited from another network."""

import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi.testclient import TestClient

import semel
from semel.dashboard.passwords import FREE_TRIES, PAUSE_SECONDS, hash_password
from semel.errors import InvalidOption
from semel.service.app import create_app
from tests.apps.kit import Service
from tests.servers.absence import served
from tests.servers.nginx import Answer, Proxied, nginx
from tests.service.kit import opened
from tests.service.kit import served as client_of

STORE = "[semel]\nurl = 'sqlite:///semel.db'\n"
LINK = re.compile(r"dashboard at (http://127\.0\.0\.1:\d+/dashboard/\?token=\S+)")


@pytest.fixture
def behind(tmp_path: Path) -> Iterator[Any]:
    """Start a service with some settings, and nginx in front of it."""
    with ExitStack() as stack:

        def start(text: str = "", more: str = "") -> tuple[Service, Proxied]:
            service = stack.enter_context(Service(tmp_path, STORE + text))
            return service, stack.enter_context(served(lambda: nginx(service.url, more)))

        yield start


def browser(service: Service) -> httpx.Client:
    return httpx.Client(base_url=service.url, trust_env=False, timeout=30)


# Without users


@pytest.mark.situation(60)
@pytest.mark.parametrize("path", ["", "ledger/", "ledger/ledger", "ledger/switches", "ledger/key?key=k"])
def test_nobody_is_an_operator_behind_a_plain_proxy_without_signing_in(behind: Any, path: str) -> None:
    _, proxied = behind()
    answer = proxied.curl(f"/dashboard/{path}")
    assert (answer.status, answer.headers["location"].partition("?")[0]) == (303, "/dashboard/sign-in")
    assert "form_token" not in answer.body


@pytest.mark.situation(60)
def test_nobody_turns_a_switch_behind_a_plain_proxy_without_signing_in(behind: Any, tmp_path: Path) -> None:
    _, proxied = behind()
    jar = tmp_path / "jar"
    proxied.submit("/dashboard/sign-in", jar)
    page = proxied.curl("/dashboard/sign-in", "--cookie", str(jar)).body
    token = page.partition('name="form_token" value="')[2].partition('"')[0]
    fields = f"form_token={token}&name=safe_mode&on=yes&why=because"
    answer = proxied.curl("/dashboard/ledger/switches", "--cookie", str(jar), "--data", fields)
    assert answer.status == 401
    with semel.connect(f"sqlite:///{tmp_path}/semel.db") as s:
        assert s.switches.list() == {}


@pytest.mark.situation(60)
def test_the_link_that_is_printed_signs_one_browser_in_and_works_once(tmp_path: Path) -> None:
    with Service(tmp_path, STORE) as service, browser(service) as ours, browser(service) as theirs:
        found = LINK.search(service.log)
        assert found is not None, service.log
        entered = ours.get(found[1])
        assert (entered.status_code, entered.headers["location"]) == (303, "/dashboard/")
        assert "token" not in entered.headers["location"]
        page = ours.get("/dashboard/", follow_redirects=True)
        assert (page.status_code, str(page.url)) == (200, f"{service.url}/dashboard/ledger/")
        assert "local</bdi>, operator" in page.text
        again = theirs.get(found[1], follow_redirects=True)
        assert "Open the link that" in again.text
        assert theirs.get("/dashboard/ledger/").status_code == 303
        assert ours.get(found[1], follow_redirects=True).url.query == b""


def test_a_wrong_token_and_a_mere_look_leave_the_link_as_it_is(tmp_path: Path) -> None:
    with opened("", tmp_path) as runtime, TestClient(create_app(runtime), follow_redirects=False) as client:
        client.get("/dashboard/?token=wrong")
        client.head(f"/dashboard/?token={runtime.link}")
        entered = client.get(f"/dashboard/?token={runtime.link}")
        assert entered.headers["location"] == "/dashboard/"
        assert client.get("/dashboard/ledger/").status_code == 200


# The throttle of passwords


PASSWORD = "correct horse battery"
FORWARDED = "proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
VICTIM, ATTACKER = 0, 1


def users(*lines: str) -> str:
    user = f"[users.bea]\npassword = '{hash_password(PASSWORD)}'\nrole = 'operator'\n"
    return "\n".join(["[service]", *lines, user])


def enter(proxied: Proxied, jar: Path, source: int, password: str, *options: str) -> Answer:
    return proxied.submit("/dashboard/sign-in", jar, *options, source=source, name="bea", password=password)


def throttled(proxied: Proxied, jar: Path, *options: str) -> Answer:
    """The first refusal of further guesses; on a slow machine the pause may pass between two of them."""
    answers = (enter(proxied, jar, ATTACKER, "guess", *options) for _ in range(20))
    return next(answer for answer in answers if answer.status == 429)


@pytest.mark.situation(60)
@pytest.mark.parametrize("forged", [False, True], ids=["plain", "forged"])
def test_a_stranger_behind_the_same_proxy_locks_no_user_out(
    behind: Any, tmp_path: Path, forged: bool
) -> None:
    _, proxied = behind(users("trusted_proxies = ['127.0.0.1']"), FORWARDED)
    as_victim = ("--header", f"X-Forwarded-For: {proxied.addresses[VICTIM]}") if forged else ()
    for _ in range(FREE_TRIES):
        assert enter(proxied, tmp_path / "evil", ATTACKER, "guess", *as_victim).status == 403
    refused = throttled(proxied, tmp_path / "evil", *as_victim)
    assert 1 <= int(refused.headers["retry-after"]) <= PAUSE_SECONDS
    assert enter(proxied, tmp_path / "own", VICTIM, PASSWORD).status == 303


def test_an_address_in_a_header_is_not_believed_unless_the_proxy_is_trusted(
    behind: Any, tmp_path: Path
) -> None:
    _, proxied = behind(users())
    for number in range(FREE_TRIES):
        header = ("--header", f"X-Forwarded-For: 10.9.9.{number}")
        assert enter(proxied, tmp_path / "evil", ATTACKER, "guess", *header).status == 403
    throttled(proxied, tmp_path / "evil", "--header", "X-Forwarded-For: 10.9.9.99")


@pytest.mark.parametrize("trusted", [True, False], ids=["trusted", "untrusted"])
def test_the_cookie_is_for_https_alone_where_a_trusted_proxy_says_so(behind: Any, trusted: bool) -> None:
    text = users("trusted_proxies = ['127.0.0.1']" if trusted else "")
    _, proxied = behind(text, "proxy_set_header X-Forwarded-Proto https;")
    cookie = proxied.curl("/dashboard/sign-in").headers["set-cookie"].lower()
    assert ("; secure" in cookie) is trusted


def test_a_trusted_proxy_that_is_no_address_is_refused_at_the_start(tmp_path: Path) -> None:
    text = "[service]\ntrusted_proxies = ['localhost']"
    with pytest.raises(InvalidOption, match=r"service\.trusted_proxies"), opened(text, tmp_path) as runtime:
        create_app(runtime)


# Settings that decide it


def test_it_is_open_only_where_the_settings_say_so(tmp_path: Path) -> None:
    with Service(tmp_path, STORE + "[service]\nopen = true") as service, browser(service) as client:
        assert "token=" not in service.log
        assert client.get("/dashboard/ledger/").status_code == 200


@pytest.mark.situation(60)
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("public_url = 'https://hooks.example.com'", "without public_url"),
        ("host = '0.0.0.0'", "loopback"),
        ("[users.ann]\npassword = '{hash}'", "users or tokens"),
    ],
)
def test_it_is_never_open_to_more_than_this_machine(tmp_path: Path, text: str, says: str) -> None:
    text = "[service]\nopen = true\n" + text.format(hash=hash_password("correct horse battery"))
    with pytest.raises(InvalidOption, match=says), opened(text, tmp_path) as runtime:
        create_app(runtime)


@pytest.mark.situation(60)
def test_with_a_public_address_there_is_no_dashboard_without_users(tmp_path: Path) -> None:
    with client_of("[service]\npublic_url = 'https://hooks.example.com'", tmp_path) as client:
        assert client.get("/dashboard/").status_code == 404
