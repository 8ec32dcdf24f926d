"""Credentials: found where they are, renewed before they are missed, by one at a time, and never shown."""

import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta

import pytest

from semel.aws import environment as module
from semel.aws.environment import (
    LEAST_LIFE,
    RENEW_AHEAD,
    Chain,
    CredentialCache,
    Credentials,
    from_environment,
)
from semel.errors import InvalidOption, MissingExtra, StoreUnavailable


class Time:
    """What time it is for whoever looks at an expiry."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def signing(self) -> float:
        return self.now


class Issuer:
    """A source that counts, and that can be held up or made to fail."""

    def __init__(self, time, life=3600.0):
        self.time, self.life = time, life
        self.issued = 0
        self.fails = False
        self.asked = threading.Event()
        self.go = threading.Event()
        self.go.set()

    def __call__(self, instead_of):
        self.asked.set()
        self.go.wait(10)
        if self.fails:
            raise StoreUnavailable("the issuer is out")
        self.issued += 1
        return Credentials(f"id{self.issued}", "s", None, self.time.now + self.life)


@pytest.fixture
def time():
    return Time()


@pytest.fixture
def issuer(time):
    return Issuer(time)


@pytest.fixture
def cache(issuer, time):
    return CredentialCache(issuer, time.signing)


def renewed(cache):
    """Wait for the renewal that runs behind, which holds the lock while it does."""
    with cache._lock:
        return cache._held


# Where they come from


def test_the_environment_has_them_whole_or_not_at_all():
    assert from_environment({}) is None
    environ = {"AWS_ACCESS_KEY_ID": " id ", "AWS_SECRET_ACCESS_KEY": "s\n"}
    assert from_environment(environ) == Credentials("id", "s")
    assert from_environment(environ | {"AWS_SESSION_TOKEN": "t"}) == Credentials("id", "s", "t")
    assert from_environment(environ | {"AWS_SESSION_TOKEN": ""}) == Credentials("id", "s")


@pytest.mark.parametrize("there", ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"])
def test_half_of_the_environments_credentials_is_an_error_that_names_the_other_half(there):
    other = ({"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"} - {there}).pop()
    with pytest.raises(StoreUnavailable, match=f"set {other} too"):
        from_environment({there: "x"})


@pytest.fixture
def bare(monkeypatch, tmp_path):
    """An environment with no credentials anywhere, and no instance metadata to ask for some."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    return tmp_path


def test_a_profile_is_found_through_botocore(bare, monkeypatch):
    (bare / "credentials").write_text(
        "[shop]\naws_access_key_id = id\naws_secret_access_key = s\naws_session_token = t\n"
    )
    monkeypatch.setenv("AWS_PROFILE", "shop")
    assert Chain()() == Credentials("id", "s", "t")


def test_the_environment_goes_before_a_profile(bare, monkeypatch):
    (bare / "credentials").write_text("[default]\naws_access_key_id = id\naws_secret_access_key = s\n")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "env")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s")
    assert Chain()() == Credentials("env", "s")


def test_what_a_command_issues_comes_with_its_expiry(bare):
    expires = datetime.now(UTC).replace(microsecond=0) + timedelta(hours=1)
    issue = bare / "issue.py"
    issued = {"Version": 1, "AccessKeyId": "id", "SecretAccessKey": "s", "SessionToken": "t"}
    issue.write_text(
        f"import json; print(json.dumps({issued!r} | {{'Expiration': {expires.isoformat()!r}}}))"
    )
    (bare / "config").write_text(f"[default]\ncredential_process = {sys.executable} {issue}\n")
    assert Chain()() == Credentials("id", "s", "t", expires.timestamp())


def test_what_is_no_longer_wanted_is_not_given_again_though_botocore_thinks_it_good(bare):
    """botocore goes by the machine's clock, which may be an hour behind."""
    expires = datetime.now(UTC) + timedelta(hours=1)
    issue = bare / "issue.py"
    issue.write_text(
        "import json, os\n"
        f"issued = {{'Version': 1, 'SecretAccessKey': 's', 'Expiration': {expires.isoformat()!r}}}\n"
        "print(json.dumps(issued | {'AccessKeyId': os.urandom(9).hex()}))\n"
    )
    (bare / "config").write_text(f"[default]\ncredential_process = {sys.executable} {issue}\n")
    chain = Chain()
    first = chain()
    assert chain() == first
    assert chain(first) != first


@pytest.mark.parametrize(
    "config",
    [
        "[default]\ncredential_process = false\n",
        "[default]\nrole_arn = x\nsource_profile = nobody\n",
        "no file at all",
    ],
)
def test_a_chain_that_fails_is_one_error_with_its_reason_and_what_to_set(bare, config):
    (bare / "config").write_text(config)
    with pytest.raises(StoreUnavailable, match=r"could not be had \(.+\); set AWS_ACCESS_KEY_ID"):
        Chain()()


def test_no_credentials_anywhere_is_one_error_that_says_what_to_set(bare):
    with pytest.raises(StoreUnavailable, match="there are no AWS credentials; set AWS_ACCESS_KEY_ID and"):
        Chain()()


def test_without_botocore_the_error_says_how_to_get_it(bare, monkeypatch):
    def absent(name, extra):
        raise MissingExtra(extra, name)

    monkeypatch.setattr(module, "require", absent)
    with pytest.raises(StoreUnavailable, match=r'pip install "semel\[boto\]"; set AWS_ACCESS_KEY_ID'):
        Chain()()


def test_with_credentials_in_the_environment_no_driver_is_imported():
    program = (
        "import sys, semel.aws.wire, semel.aws.s3, semel.aws.boto\n"
        "from semel.aws.wire import Wire\n"
        "wire = Wire('dynamodb')\n"
        "wire.credential_cache.load()\n"
        "drivers = {'botocore', 'boto3', 'urllib3', 'aiohttp', 'asyncio'}\n"
        "loaded = drivers & {name.partition('.')[0] for name in sys.modules}\n"
        "sys.exit(', '.join(loaded) or 0)\n"
    )
    environ = os.environ | {
        "AWS_ACCESS_KEY_ID": "a",
        "AWS_SECRET_ACCESS_KEY": "b",
        "AWS_REGION": "eu-north-1",
    }
    assert subprocess.run([sys.executable, "-c", program], env=environ, check=False).returncode == 0


# What they look like


def test_a_secret_is_never_shown():
    assert repr(Credentials("id", "hush", "hush-too")) == "<Credentials of id>"


@pytest.mark.parametrize("bad", ["", "a b", "a\r\nX-Evil: 1", "é", "a\tb"])
def test_what_would_break_a_header_is_no_credential(bad):
    with pytest.raises(InvalidOption, match="blanks or line breaks"):
        Credentials(bad, "s")
    with pytest.raises(InvalidOption, match="blanks or line breaks"):
        Credentials("id", "s", bad)


# How they are renewed


def test_there_are_none_until_they_are_loaded_and_then_they_are_at_hand(cache):
    assert cache.current() is None
    assert cache.load().access_key == "id1"
    assert cache.current().access_key == "id1"


def test_credentials_that_do_not_expire_are_loaded_once(time):
    cache = CredentialCache(lambda _: Credentials("id", "s"), time.signing)
    cache.load()
    time.now += 1e9
    assert cache.current() == Credentials("id", "s")


def test_they_are_renewed_behind_before_they_expire_and_used_meanwhile(cache, issuer, time):
    cache.load()
    time.now += issuer.life - RENEW_AHEAD + 1
    issuer.go.clear()
    issuer.asked.clear()
    assert cache.current().access_key == "id1"
    assert issuer.asked.wait(10)
    assert cache.current().access_key == "id1"
    issuer.go.set()
    assert renewed(cache).access_key == "id2"
    assert cache.current().access_key == "id2"
    assert issuer.issued == 2


def test_a_renewal_that_fails_is_tried_again_a_while_later(cache, issuer, time):
    cache.load()
    time.now += issuer.life - RENEW_AHEAD + 1
    issuer.fails = True
    assert cache.current().access_key == "id1"
    assert renewed(cache).access_key == "id1"
    issuer.fails = False
    assert cache.current().access_key == "id1"
    assert issuer.issued == 1
    time.now += module.RETRY_AFTER
    cache.current()
    assert renewed(cache).access_key == "id2"


def test_expired_ones_are_not_handed_out(cache, issuer, time):
    cache.load()
    time.now += issuer.life - LEAST_LIFE + 1
    assert cache.current() is None
    assert cache.load().access_key == "id2"


def test_those_who_need_them_at_the_same_time_are_served_by_one_request(cache, issuer):
    issuer.go.clear()
    got = []
    threads = [threading.Thread(target=lambda: got.append(cache.load())) for _ in range(8)]
    for thread in threads:
        thread.start()
    issuer.asked.wait(10)
    issuer.go.set()
    for thread in threads:
        thread.join()
    assert [one.access_key for one in got] == ["id1"] * 8


def test_refused_ones_are_replaced_unless_somebody_has_done_so_already(cache, issuer):
    first = cache.load()
    second = cache.load(instead_of=first)
    assert (first.access_key, second.access_key) == ("id1", "id2")
    assert cache.load(instead_of=first) is second
    assert issuer.issued == 2


def test_a_failure_to_load_is_the_callers_to_know(cache, issuer):
    issuer.fails = True
    with pytest.raises(StoreUnavailable, match="the issuer is out"):
        cache.load()
    issuer.fails = False
    assert cache.load().access_key == "id1"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_child_does_not_wait_for_its_parents_renewal(cache, issuer, time):
    cache.load()
    time.now += issuer.life - RENEW_AHEAD + 1
    issuer.go.clear()
    issuer.asked.clear()
    cache.current()
    issuer.asked.wait(10)
    child = os.fork()
    if child == 0:
        signal.alarm(20)
        issuer.go = threading.Event()
        issuer.go.set()
        os._exit(cache.load(instead_of=cache._held).access_key != "id2")
    issuer.go.set()
    renewed(cache)
    assert os.waitpid(child, 0)[1] == 0
