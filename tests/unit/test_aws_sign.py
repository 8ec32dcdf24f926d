"""Signatures: the very ones that botocore makes, for whatever is signed."""

import re
from datetime import UTC, datetime
from urllib.parse import quote

import botocore.auth
import pytest
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from hypothesis import given, settings
from hypothesis import strategies as st

from semel.aws.environment import Credentials, ServiceEndpoint
from semel.aws.wire import JSON, Signer
from tests.amounts import amount

WORDS = st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=8)
REGIONS = st.lists(WORDS, min_size=2, max_size=4).map("-".join)
HOSTS = st.lists(WORDS, min_size=1, max_size=3).map(".".join) | st.just("[::1]")
URLS = st.builds(
    "{}://{}{}".format,
    st.sampled_from(["http", "https"]),
    HOSTS,
    st.just("") | st.integers(1, 65535).map(lambda port: f":{port}"),
)
VISIBLE = st.text(st.characters(min_codepoint=0x21, max_codepoint=0x7E), min_size=1, max_size=60)
SECRETS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=60)
CREDENTIALS = st.builds(Credentials, VISIBLE, SECRETS, st.none() | VISIBLE)
# Up to the end of the year 9999.
MOMENTS = st.floats(0, 253402300799)
TARGETS = st.from_regex(r"[A-Za-z0-9_]{1,20}\.[A-Za-z0-9]{1,30}", fullmatch=True)


def by_botocore(auth, credentials, service, region, moment, request):
    with pytest.MonkeyPatch.context() as patch:
        frozen = datetime.fromtimestamp(int(moment), UTC)
        patch.setattr(botocore.auth, "get_current_datetime", lambda: frozen)
        keys = BotoCredentials(credentials.access_key, credentials.secret_key, credentials.token)
        auth(keys, service, region).add_auth(request)
    return request.headers


# botocore leaves these to its HTTP client.
UNSIGNED = {"host", "accept-encoding", "user-agent", "content-length"}


def signed(line, request, body):
    """The headers of a request that its signature is about, and itself."""
    head, _, sent = request.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    assert (first, sent) == (f"{line} HTTP/1.1", body)
    headers = {name.lower(): value for name, value in (one.split(": ", 1) for one in lines)}
    assert headers["content-length"] == str(len(body))
    return {name: value for name, value in headers.items() if name not in UNSIGNED}


def lowered(headers):
    return {name.lower(): value for name, value in headers.items()}


@settings(max_examples=amount(600, 150))
@given(URLS, WORDS, REGIONS, CREDENTIALS, TARGETS, st.binary(max_size=300), MOMENTS)
def test_a_json_request_is_signed_as_botocore_signs_it(
    url, service, region, credentials, target, body, moment
):
    signer = Signer(service, region, ServiceEndpoint.from_url(url).authority)
    ours = signed("POST /", signer.sign_json(target, body, credentials, moment), body)
    headers = {"X-Amz-Target": target, "Content-Type": JSON}
    request = AWSRequest("POST", f"{url}/", headers, body)
    theirs = by_botocore(botocore.auth.SigV4Auth, credentials, service, region, moment, request)
    assert ours == lowered(theirs)


@settings(max_examples=amount(600, 150))
@given(
    URLS,
    REGIONS,
    CREDENTIALS,
    st.sampled_from(["GET", "PUT", "DELETE"]),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=40) | st.text("/ .~+%&=?#a", max_size=20),
    st.binary(max_size=300),
    MOMENTS,
)
def test_an_object_request_is_signed_as_botocore_signs_it(
    url, region, credentials, method, key, body, moment
):
    path = f"/bucket/{quote(key, safe='/~')}"
    signer = Signer("s3", region, ServiceEndpoint.from_url(url).authority)
    ours = signed(f"{method} {path}", signer.sign_object(method, path, body, credentials, moment), body)
    request = AWSRequest(method, url + path, {}, body)
    theirs = by_botocore(botocore.auth.S3SigV4Auth, credentials, "s3", region, moment, request)
    assert ours == lowered(theirs)


@given(st.lists(st.tuples(CREDENTIALS, MOMENTS), min_size=2, max_size=6))
def test_what_a_signer_remembers_never_shows(requests):
    """Midnight passes, credentials change and change back: a signer says what a new one would say."""
    signer = Signer("dynamodb", "eu-north-1", "h")
    for credentials, moment in requests + requests:
        new = Signer("dynamodb", "eu-north-1", "h")
        asked = ("T.Op", b"{}", credentials, moment)
        assert signer.sign_json(*asked) == new.sign_json(*asked)


def test_the_secret_itself_is_never_sent():
    signer = Signer("dynamodb", "eu-north-1", "h")
    request = signer.sign_json("T.Op", b"", Credentials("id", "hush-hush"), 0.0)
    assert b"hush" not in request
    assert re.search(rb"Credential=id/19700101/eu-north-1/dynamodb/aws4_request, ", request)
