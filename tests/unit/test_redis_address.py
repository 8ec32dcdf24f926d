"""What a Redis URL says, and which are refused."""

import pytest

import semel
from semel.errors import InvalidOption
from semel.stores.redis.server import Node, RedisAddress, parse


def test_a_url_says_where_and_how():
    assert parse("redis://cache") == RedisAddress(home=Node("cache", 6379))
    place = (
        "[::1]:7000?prefix=a:b&cluster=yes&timeout=9"
        "&wait_replicas=2&wait_timeout=3&ssl_cert_reqs=none&ssl_check_hostname=no"
    )
    full = parse(f"rediss://me:s%40fe@{place}")
    assert full == RedisAddress(
        home=Node("::1", 7000),
        username="me",
        password="s@fe",
        tls={"ssl_cert_reqs": "none", "ssl_check_hostname": False},
        cluster=True,
        prefix="a:b",
        timeout=9,
        wait_replicas=2,
        wait_timeout=3,
    )
    assert parse("redis://:pw@h/3").db == 3
    assert (parse("redis://:pw@h").password, parse("redis://:pw@h").username) == ("pw", None)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("redis:", "no host"),
        ("redis:///0", "no host"),
        ("redis://h:port", "port"),
        ("redis://h:99999", "port"),
        ("redis://h/zero", "number of a database"),
        ("redis://h?prefix=", "letters"),
        ("redis://h?prefix=a{b}", "letters"),
        ("redis://h?colour=red", "unknown option 'colour'"),
        ("redis://h?cluster=maybe", "yes or no"),
        ("redis://h/1?cluster=yes", "database 0"),
        ("redis://h?wait_replicas=0", "from 1 on"),
        ("redis://h?wait_replicas=some", "from 1 on"),
        ("redis://h?wait_timeout=1", "wait_replicas"),
        ("redis://h?wait_replicas=1&wait_timeout=10", "shorter than timeout"),
        ("redis://h?timeout=soon", "seconds"),
        ("redis://h?timeout=0", "seconds"),
        ("redis://h?ssl_ca_certs=ca.pem", "rediss://"),
        ("rediss://h?ssl_cert_reqs=perhaps", "required, optional or none"),
    ],
)
def test_a_wrong_url_is_refused_with_a_right_one(url, reason):
    with pytest.raises(InvalidOption, match=reason) as caught:
        semel.connect(url.replace("//h", "//:sesame@h"))
    assert "redis://:password@cache.example.com:6379/0" in str(caught.value)
    assert "sesame" not in str(caught.value)


def test_nothing_is_sent_before_the_first_command():
    semel.connect("redis://nowhere.invalid").close()


def test_the_password_is_not_shown():
    assert "sesame" not in repr(parse("redis://:sesame@h"))
    assert "sesame" not in str(parse("redis://:sesame@h"))
