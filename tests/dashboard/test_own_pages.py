"""Pages of applications' own: plain values, whatever they hold, become text."""

import re
from html import unescape

import pytest
from markupsafe import Markup
from starlette.applications import Starlette

from semel.dashboard.app import dashboard_of
from semel.dashboard.own import MOST_ROWS
from semel.dashboard.views import LedgerView
from semel.errors import StoreUnavailable
from semel.ops.blocks import (
    AppPage,
    FactsBlock,
    FieldBlock,
    KeyLink,
    PageLink,
    TableBlock,
    TextBlock,
    TimeCell,
    TitleBlock,
)
from tests.dashboard.kit import SECRET, USERS, Browser, completed


def visited(s, make, path="/own/orders"):
    view = LedgerView(s=s, pages={"orders": AppPage("Orders", make)})
    app = Starlette()
    app.mount("/semel", dashboard_of([view], tokens=USERS, secret=SECRET))
    return Browser(app).sign_in("vic").get(path)


def showing(*blocks):
    async def make(_query):
        return list(blocks)

    return make


def test_every_kind_of_block_and_cell_is_shown(s):
    completed(s, "order:1")
    rows = (
        (KeyLink("order:1", "first"), PageLink("orders", "more", {"n": "1"}), TimeCell(0), 1200, True, None),
    )
    text = visited(
        s,
        showing(
            TitleBlock("Shop"),
            TextBlock("It is open."),
            FactsBlock({"Open": True, "Boxes": 3}),
            FieldBlock("number", "Number", "1001"),
            TableBlock("Last", ("Key", "Page", "When", "Sum", "Paid", "Note"), rows),
            TableBlock("Lost", ("Key",), (), "Nothing was lost."),
        ),
    ).text
    for told in (
        "<h2><bdi>Shop</bdi></h2>",
        "It is open.",
        "<dt><bdi>Boxes</bdi></dt><dd><bdi>3</bdi></dd>",
        'name="number" value="" placeholder="1001"',
        '<a href="/semel/key?key=order%3A1"><bdi>first</bdi></a>',
        '<a href="/semel/own/orders?n=1"><bdi>more</bdi></a>',
        'datetime="1970-01-01T00:00:00Z"',
        '<td class="number"><bdi>1,200</bdi>',
        "<bdi>yes</bdi>",
        "Nothing was lost.",
        'href="/semel/own/orders" aria-current="page"',
    ):
        assert told in re.sub(r"\s*\n\s*", "", text), told


@pytest.mark.parametrize(
    "text", ["<script>alert(1)</script>", Markup("<script>alert(1)</script>"), "a\u202eb"]
)
def test_nothing_that_an_application_says_is_markup(s, text):
    blocks = (
        TitleBlock(text),
        TextBlock(text),
        FactsBlock({text: text}),
        FieldBlock("x", text, text),
        TableBlock(text, (text,), ((KeyLink(text, text),), (PageLink(text, text),), (text,)), text),
        TableBlock(text, (text,), (), text),
    )
    page = visited(s, showing(*blocks)).text
    assert page.count("<script") == 1
    assert "\u202e" not in page
    for address in re.findall(r'(?:href|action)="([^"]*)"', page):
        assert unescape(address).startswith(("/semel/", "#"))


def test_a_page_is_given_what_its_address_asks_for_up_to_a_length(s):
    async def make(query):
        return [TextBlock(f"{len(query['q'])} of q")]

    assert "500 of q" in visited(s, make, f"/own/orders?q={'x' * 900}").text


def test_a_page_that_fails_says_so_and_nothing_of_what_it_read(s, caplog):
    async def make(_query):
        raise ValueError("bea@example.org")

    answer = visited(s, make)
    assert (answer.status_code, "bea@" in answer.text, "page orders" in caplog.text) == (500, False, True)


def test_a_store_that_is_away_is_told_as_on_every_page(s):
    async def make(_query):
        raise StoreUnavailable("gone")

    assert visited(s, make).status_code == 503


@pytest.mark.parametrize("block", ["<b>text</b>", None, TableBlock("t", ("a", "b"), ((1,), (1, 2, 3)))])
def test_what_is_no_block_ends_in_a_page_all_the_same(s, block):
    answer = visited(s, showing(block))
    assert answer.status_code == (200 if isinstance(block, TableBlock) else 500)
    assert "<b>text" not in answer.text


def test_a_table_without_end_is_cut(s):
    text = visited(s, showing(TableBlock("t", ("n",), tuple((n,) for n in range(MOST_ROWS + 5))))).text
    assert (text.count("<tr>"), "more rows than are shown" in text) == (MOST_ROWS + 1, True)


def test_there_is_no_page_that_the_application_does_not_have(s):
    assert visited(s, showing(), "/own/other").status_code == 404
