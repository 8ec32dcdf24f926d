"""The audit says what the index tells about the pinned versions, and what it does not tell."""

from typing import Any

import httpx
import pytest

from tools import audit

BAD = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fixed_in": ["2.1"], "withdrawn": None}
DATE = "Wed, 18 Nov 2026 06:00:00 GMT"


def page(version: str, *known: dict[str, Any]) -> dict[str, Any]:
    return {"info": {"version": version}, "vulnerabilities": list(known)}


def audited(pages: dict[str, Any], *pins: tuple[str, str]) -> tuple[int, str]:
    """The exit code and the words, where the index has these pages."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = pages.get(request.url.path)
        return httpx.Response(404 if found is None else 200, json=found, headers={"Date": DATE})

    with httpx.Client(base_url="http://index/pypi", transport=httpx.MockTransport(answer)) as client:
        code, lines = audit.summary(audit.asked(client, *pin) for pin in pins)
    return code, "\n".join(lines)


def test_a_vulnerable_version_is_named_with_the_version_that_mends_it() -> None:
    code, words = audited({"/pypi/a/2.0/json": page("2.0", BAD)}, ("a", "2.0"))
    assert code == audit.VULNERABLE
    assert "a 2.0: PYSEC-1, CVE-1; fixed in 2.1" in words


def test_a_vulnerability_that_was_withdrawn_is_none() -> None:
    code, words = audited({"/pypi/a/2.0/json": page("2.0", BAD | {"withdrawn": DATE})}, ("a", "2.0"))
    assert code == 0
    assert words == (
        "1 of 1 pinned versions could be asked about; 0 known vulnerabilities, as the index told on " + DATE
    )


def test_the_page_of_the_project_speaks_of_its_newest_version_alone() -> None:
    pages = {"/pypi/a/json": page("2.0"), "/pypi/b/json": page("3.1")}
    assert audited(pages, ("a", "2.0"))[0] == 0
    code, words = audited(pages, ("a", "2.0"), ("b", "3.0"))
    assert code == audit.NOT_KNOWN
    assert "b 3.0: not known; the index tells about 3.1 alone" in words
    assert "1 of 2 pinned versions" in words


@pytest.mark.parametrize("pages", [{}, {"/pypi/a/json": {"info": {"version": "2.0"}}}])
def test_without_data_nothing_is_called_safe(pages: dict[str, Any]) -> None:
    code, words = audited(pages, ("a", "2.0"))
    assert code == audit.NOT_KNOWN
    assert words.startswith("No data about vulnerabilities could be had, so nothing is known: ")


def test_an_index_that_cannot_be_reached_is_told_of() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route to host")

    with httpx.Client(base_url="http://index", transport=httpx.MockTransport(refuse)) as client:
        code, [words] = audit.summary([audit.asked(client, "a", "2.0")])
    assert code == audit.NOT_KNOWN
    assert words.endswith("ConnectError: no route to host")


def test_every_pinned_version_is_asked_about() -> None:
    text = audit.CONSTRAINTS.read_text("utf-8")
    assert len(audit.pins(text)) == text.count("==") == len(text.splitlines())


@pytest.mark.parametrize("simple", ["https://packages.example/simple", "https://packages.example/simple/"])
def test_the_index_is_the_one_that_pip_is_configured_for(
    simple: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", simple)
    assert audit.index() == "https://packages.example/pypi"
