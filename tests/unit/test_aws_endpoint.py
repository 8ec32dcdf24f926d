"""Where a service is: what was said goes before what the environment says, and that before what is usual."""

import os

import botocore.session
import pytest
from botocore.regions import EndpointResolver
from hypothesis import given
from hypothesis import strategies as st

from semel.aws import environment as module
from semel.aws.environment import Proxy, ServiceEndpoint, find_endpoint, find_proxy, find_region, tls
from semel.errors import InvalidOption, MissingExtra


@pytest.fixture(autouse=True)
def bare(monkeypatch, tmp_path):
    """No settings but the test's own."""
    for name in list(os.environ):
        if name.startswith("AWS_") or name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    return tmp_path


def absent(name, extra):
    raise MissingExtra(extra, name)


# Regions


def test_a_region_is_as_given_or_the_environments():
    environ = {"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}
    assert find_region("eu-north-1", environ) == "eu-north-1"
    assert find_region(None, environ) == "eu-west-1"
    assert find_region(None, {"AWS_DEFAULT_REGION": "eu-west-2"}) == "eu-west-2"


def test_a_region_may_be_the_profiles(bare, monkeypatch):
    (bare / "config").write_text("[profile shop]\nregion = ap-south-1\n")
    monkeypatch.setenv("AWS_PROFILE", "shop")
    assert find_region(None) == "ap-south-1"


def test_without_a_region_the_error_says_what_to_set(monkeypatch):
    with pytest.raises(InvalidOption, match="set AWS_REGION"):
        find_region(None)
    monkeypatch.setattr(module, "require", absent)
    with pytest.raises(InvalidOption, match="set AWS_REGION"):
        find_region(None)


def test_a_profile_that_is_not_there_is_named(monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "nobody")
    with pytest.raises(InvalidOption, match="nobody"):
        find_region(None)


@pytest.mark.parametrize(
    "region", ["", "eu", "EU-NORTH-1", "eu-north-1.evil.example", "eu north 1", "eu-north-1\r\n"]
)
def test_what_is_no_region_is_refused(region):
    with pytest.raises(InvalidOption):
        find_region(region, {})


# Endpoints


@pytest.mark.parametrize(
    ("region", "host"),
    [
        ("eu-north-1", "dynamodb.eu-north-1.amazonaws.com"),
        ("us-gov-west-1", "dynamodb.us-gov-west-1.amazonaws.com"),
        ("cn-north-1", "dynamodb.cn-north-1.amazonaws.com.cn"),
        ("us-iso-east-1", "dynamodb.us-iso-east-1.c2s.ic.gov"),
        ("eusc-de-east-1", "dynamodb.eusc-de-east-1.amazonaws.eu"),
    ],
)
def test_each_partition_has_its_own_host(region, host):
    assert find_endpoint("dynamodb", region, None, {}) == ServiceEndpoint("https", host, 443, standard=True)


def test_every_region_of_the_usual_partitions_is_where_botocore_says():
    session = botocore.session.Session()
    resolver = EndpointResolver(session.get_data("endpoints"))
    regions = [
        r for p in ("aws", "aws-cn", "aws-us-gov") for r in session.get_available_regions("dynamodb", p)
    ]
    assert len(regions) > 30
    for region in regions:
        expected = resolver.construct_endpoint("dynamodb", region)["hostname"]
        assert find_endpoint("dynamodb", region, None, {}).host == expected


def test_without_botocore_a_rare_region_says_what_it_takes(monkeypatch):
    monkeypatch.setattr(module, "require", absent)
    with pytest.raises(InvalidOption, match=r"semel\[boto\]"):
        find_endpoint("dynamodb", "us-iso-east-1", None, {})


def test_an_endpoint_is_as_given_or_the_environments():
    environ = {"AWS_ENDPOINT_URL_DYNAMODB": "http://a:1", "AWS_ENDPOINT_URL": "http://b:2/"}
    assert find_endpoint("dynamodb", "eu-north-1", "https://c", environ) == ServiceEndpoint("https", "c", 443)
    assert find_endpoint("dynamodb", "eu-north-1", None, environ) == ServiceEndpoint("http", "a", 1)
    assert find_endpoint("s3", "eu-north-1", None, environ) == ServiceEndpoint("http", "b", 2)


@pytest.mark.parametrize(
    ("url", "authority"),
    [
        ("http://h", "h"),
        ("http://h:80", "h"),
        ("https://h:80", "h:80"),
        ("https://H.example:443/", "h.example"),
        ("http://[::1]:8000", "[::1]:8000"),
        ("http://127.0.0.1:8000", "127.0.0.1:8000"),
    ],
)
def test_the_host_header_has_the_port_where_it_is_not_the_usual_one(url, authority):
    assert ServiceEndpoint.from_url(url).authority == authority


@pytest.mark.parametrize(
    "url",
    ["", "h", "h:8000", "ftp://h", "http://", "http://h/path", "http://h?q", "http://h#f", "http://u:p@h",
     "http://h:port", "http://h:99999", "http://h o", "http://h\r\nX: y", "http://[::1", "http://é"],
)  # fmt: skip
def test_what_is_no_endpoint_is_refused(url):
    with pytest.raises(InvalidOption, match="is no endpoint"):
        ServiceEndpoint.from_url(url)


@given(st.text(max_size=30) | st.text(max_size=20).map("http://{}".format))
def test_whatever_is_given_is_an_endpoint_or_refused(url):
    try:
        endpoint = ServiceEndpoint.from_url(url)
    except InvalidOption:
        return
    assert endpoint.authority.isascii()
    assert endpoint.authority.isprintable()
    assert ServiceEndpoint.from_url(str(endpoint)) == endpoint


# Proxies

AWS = ServiceEndpoint("https", "dynamodb.eu-north-1.amazonaws.com", 443)


@pytest.mark.parametrize(
    ("url", "proxy"),
    [
        ("http://proxy:3128", Proxy("proxy", 3128)),
        ("proxy:3128", Proxy("proxy", 3128)),
        ("http://ada:p%40ss@proxy", Proxy("proxy", 80, "Basic YWRhOnBAc3M=")),
    ],
)
@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy"])
def test_a_secure_endpoint_is_reached_through_the_environments_proxy(monkeypatch, name, url, proxy):
    monkeypatch.setenv(name, url)
    assert find_proxy(AWS) == proxy


@pytest.mark.parametrize(
    "exceptions", ["*", ".amazonaws.com", "dynamodb.eu-north-1.amazonaws.com", "x, amazonaws.com"]
)
def test_no_proxy_is_respected(monkeypatch, exceptions):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("NO_PROXY", exceptions)
    assert find_proxy(AWS) is None


def test_a_local_server_is_reached_directly(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy")
    assert find_proxy(ServiceEndpoint("http", "localhost", 8000)) is None
    assert find_proxy(AWS) is not None


def test_a_proxy_of_another_kind_is_refused_and_its_password_not_shown(monkeypatch):
    monkeypatch.setenv("HTTPS_PROXY", "socks5://ada:hush@proxy")
    with pytest.raises(InvalidOption, match="http://host:port") as raised:
        find_proxy(AWS)
    assert "hush" not in str(raised.value)


def test_a_tunnel_is_asked_for_by_host_and_port():
    asked = Proxy("proxy", 80, "Basic x").request(ServiceEndpoint("https", "::1", 8443))
    assert asked == b"CONNECT [::1]:8443 HTTP/1.1\r\nHost: [::1]:8443\r\nProxy-Authorization: Basic x\r\n\r\n"


# Certificates


def test_servers_have_to_prove_who_they_are(tmp_path):
    context = tls({})
    assert context.check_hostname
    assert context.verify_mode.name == "CERT_REQUIRED"
    with pytest.raises(InvalidOption, match="AWS_CA_BUNDLE"):
        tls({"AWS_CA_BUNDLE": str(tmp_path / "missing.pem")})
