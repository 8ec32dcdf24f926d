"""The dashboard of the real service in a real Chromium: what people do with it, and whom it shuts out."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

import semel
from semel.core.lifecycle import Status
from semel.ops.model import version_of
from tests.browser.kit import (
    KEY,
    Desk,
    Visitor,
    claim,
    completed,
    desk_in,
    doubted,
    logged_digest,
    sign_in,
)
from tests.servers.absence import served
from tests.servers.chromium import chromium
from tests.servers.running import until
from tests.service.test_dashboards import OPERATOR, VIEWER

PERSON = "ada@example.org"
# The scripts that would run note it here.
RAN = "window.ran = true"
HOSTILE = {
    "script": f"<script>{RAN}</script>",
    "attribute": f"\"'><img src=x onerror='{RAN}'>",
    "link": f"javascript:{RAN}",
    "template": "{{ 7 * 7 }}{% raw %}${7 * 7}",
    "right to left": "invoice-\u202egpj.exe \u05e9\u05dc\u05d5\u05dd\u200f",
    "entity": "&lt;b&gt; &#x3c;script&#x3e;",
    "long": "x" * 1000,
}


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    with desk_in(tmp_path_factory.mktemp("desk")) as desk:
        yield desk


@pytest.fixture(scope="module")
def _visitor(desk: Desk) -> Iterator[Visitor]:
    with served(chromium) as browser:
        yield Visitor(browser, desk)


@pytest.fixture
def visitor(_visitor: Visitor) -> Iterator[Visitor]:
    """Whoever visits; and nothing that was shown gave the browser cause for complaint."""
    yield _visitor
    assert _visitor.leave() == []


@pytest.fixture
def operator(visitor: Visitor) -> Page:
    return visitor.arrive("oncall")


@pytest.fixture
def viewer(visitor: Visitor) -> Page:
    return visitor.arrive("viewer")


# Coming in


def test_whoever_signs_in_is_led_to_where_they_were_going(visitor: Visitor, desk: Desk) -> None:
    page = visitor.arrive()
    sign_in(page, desk, VIEWER, "/ledger?prefix=charge:order-7")
    expect(page).to_have_url(desk.address("/ledger") + "?prefix=charge:order-7")
    expect(page.get_by_text("viewer, viewer")).to_be_visible()
    expect(page.get_by_role("link", name=KEY)).to_be_visible()
    page.get_by_role("button", name="Sign out").click()
    expect(page).to_have_url(f"{desk.root}/sign-in")
    page.goto(desk.address("/ledger"))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


def test_a_wrong_token_is_refused(visitor: Visitor, desk: Desk) -> None:
    page = visitor.arrive()
    sign_in(page, desk, OPERATOR[:-1])
    expect(page.get_by_role("alert")).to_contain_text("No user has this token")
    page.goto(desk.address("/"))
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# Finding, reading and putting right


def test_traffic_is_seen_and_found_by_prefix_and_by_the_digest_of_a_log_line(
    viewer: Page, desk: Desk
) -> None:
    before = logged_digest(desk.service.log, "completed")
    desk.deliver("seen-1")
    assert until(lambda: len(logged_digest(desk.service.log, "completed")) > len(before))
    desk.open(viewer, "/ledger")
    viewer.get_by_label("Key begins with").fill("echo:seen")
    viewer.get_by_role("button", name="Search").click()
    expect(viewer.get_by_role("rowheader")).to_have_text(["echo:seen-1"])
    expect(viewer).to_have_url(desk.address("/ledger") + "?" + viewer.url.partition("?")[2])
    viewer.get_by_role("link", name="Clear").click()
    viewer.get_by_label("Digest in a log").fill(logged_digest(desk.service.log, "completed")[-1])
    viewer.get_by_role("button", name="Search").click()
    viewer.get_by_role("rowheader").get_by_role("link", name="echo:seen-1").click()
    expect(viewer.get_by_role("heading", level=1)).to_have_text("echo:seen-1")
    expect(viewer.locator(".story li")).to_contain_text(["attempt 1 began", "attempt 1 completed"])


def test_a_key_is_gone_to_by_its_name_and_tells_its_time_line(viewer: Page, desk: Desk) -> None:
    desk.s.ledger.release(claim(desk.s, "pay:lapsed"), TimeoutError("too slow"))
    completed(desk.s, "pay:lapsed")
    desk.open(viewer, "/")
    viewer.get_by_label("Go to key").fill("pay:lapsed")
    viewer.keyboard.press("Enter")
    lines = viewer.get_by_role("region", name="What happened").get_by_role("listitem")
    said = ["attempt 1 began", "TimeoutError: too slow", "attempt 2 began", "attempt 2 completed"]
    expect(lines).to_contain_text(said)
    picture = viewer.get_by_role("img", name="Attempts over time")
    expect(picture).to_have_accessible_name(
        "Attempts over time: attempt 1: gave the key back; attempt 2: completed. "
        "The list below has the moments."
    )
    expect(picture.locator("text")).to_have_text(["attempt 1: gave the key back", "attempt 2: completed"])
    for shape in picture.locator("circle").all():
        expect(shape).to_be_in_viewport()
    expect(viewer.get_by_text("is given the kept result, and nothing runs")).to_be_visible()


def test_what_is_held_is_settled_with_a_reason_that_the_journal_has(operator: Page, desk: Desk) -> None:
    doubted(desk.s, "pay:held")
    desk.open(operator, "/doubts")
    operator.get_by_role("link", name="pay:held").click()
    operator.get_by_role("radio", name="Complete").check()
    operator.get_by_label("Result, as JSON").fill('{"paid": true}')
    operator.get_by_label("Reason, for whoever").fill("the bank has it")
    operator.get_by_role("button", name="Do it").click()
    expect(operator.get_by_role("status")).to_contain_text("It was unknown, and is completed now")
    record = desk.s.ledger.get("pay:held")
    assert record is not None
    assert desk.s.ledger.result(record) == {"paid": True}
    operator.get_by_role("status").get_by_role("link", name="journal").click()
    row = operator.get_by_role("row").filter(has_text="the bank has it")
    expect(row).to_contain_text("complete pay:held, which was unknown")
    expect(row).to_contain_text("oncall")
    desk.open(operator, "/doubts")
    expect(operator.get_by_role("link", name="pay:held")).to_have_count(0)


def test_what_cannot_be_undone_is_asked_for_twice(operator: Page, visitor: Visitor, desk: Desk) -> None:
    completed(desk.s, "pay:forgotten")
    desk.open(operator, "/key", key="pay:forgotten")
    operator.get_by_role("radio", name="Forget").check()
    operator.get_by_label("Reason, for whoever").fill("test data")
    operator.get_by_role("button", name="Do it").click()
    # Whoever is asked says no.
    assert visitor.troubles.pop() == "dialog: Forget this key? Its effect may then happen a second time."
    assert desk.s.ledger.get("pay:forgotten") is not None


def test_a_switch_is_flipped(operator: Page, desk: Desk) -> None:
    desk.open(operator, "/switches")
    operator.get_by_label("Name").fill("sms")
    operator.get_by_label("Reason", exact=True).fill("the provider is down")
    operator.get_by_role("button", name="Turn on", exact=True).last.click()
    item = operator.get_by_role("listitem").filter(has=operator.get_by_role("heading", name="sms"))
    expect(item).to_contain_text("on: it stops")
    item.get_by_label("Reason to turn sms off").fill("it is back")
    item.get_by_role("button", name="Turn off").click()
    expect(item).to_contain_text("it is back")
    assert not desk.s.switches.list()["sms"].on
    assert {("oncall", "turn on", "sms"), ("oncall", "turn off", "sms")} <= set(desk.journal())


def test_dead_letters_of_one_error_are_put_back_once_they_were_shown(operator: Page, desk: Desk) -> None:
    torn, before = ["echo:torn-1", "echo:torn-2"], len(desk.inbox.dead())
    desk.open(operator, "/inboxes")
    operator.get_by_role("rowheader").get_by_role("link", name="echo").click()
    operator.get_by_role("navigation", name="By error").get_by_role("link", name="LookupError 2").click()
    rows = operator.get_by_role("rowheader").get_by_role("link")
    expect(rows).to_have_text(torn)
    operator.get_by_role("button", name="Put back those of this error").click()
    expect(operator.get_by_role("heading", level=1)).to_have_text("Put back into echo?")
    expect(operator.get_by_role("main")).to_contain_text("2 that died of LookupError")
    expect(rows).to_have_text(torn)
    assert len(desk.inbox.dead()) == before
    desk.mend()
    operator.get_by_label("Reason, for whoever").fill("the piece is found")
    operator.get_by_role("button", name="Put them back").click()
    expect(operator.get_by_role("status").filter(has_text="put back")).to_contain_text("2 put back")
    assert until(lambda: {"done torn-1", "done torn-2"} <= {*desk.effects})
    expect(operator.locator("#live-inbox li").first).to_contain_text("0 waiting")
    assert len(desk.inbox.dead()) == before - 2
    [about] = [about for _, action, about in desk.journal() if action == "redrive"]
    assert about.startswith("inbox echo: error LookupError, until ")


def test_a_person_is_erased_once_it_was_shown_what_would_go(operator: Page, desk: Desk) -> None:
    done = desk.s.ledger.claim("reply:erased", ttl=3600, subject=PERSON)
    assert isinstance(done, semel.Claimed)
    desk.s.ledger.complete(done, f"Dear {PERSON}")
    desk.s.documents.put("chat:erased", {"from": PERSON}, subject=PERSON)
    desk.open(operator)
    operator.get_by_role("navigation", name="Pages").get_by_role("link", name="Persons").click()
    operator.get_by_label("Person, as the application names them").fill(PERSON)
    operator.get_by_label("Reason, for whoever").fill("request no. 17")
    operator.get_by_role("button", name="See what would be erased").click()
    expect(operator.get_by_role("status").filter(has_text="erase")).to_contain_text("would erase 2 rows")
    rows = operator.get_by_role("table", name="Rows by table").get_by_role("row")
    expect(rows).to_have_text([re.compile("Table"), re.compile("ledger *1"), re.compile("documents *1")])
    assert desk.s.documents.get("chat:erased") is not None
    operator.get_by_role("button", name="Erase it for good").click()
    expect(operator.get_by_role("status").filter(has_text="erased")).to_contain_text("2 rows erased")
    assert PERSON not in operator.content()
    assert desk.s.documents.get("chat:erased") is None
    record = desk.s.ledger.get("reply:erased")
    assert record is not None
    assert (record.status, record.tombstone) == (Status.COMPLETED, True)
    operator.get_by_role("main").get_by_role("link", name="journal").click()
    row = operator.get_by_role("row").filter(has_text="request no. 17")
    expect(row).to_contain_text("erase person")
    expect(row).to_contain_text("oncall")
    assert PERSON not in operator.content()
    desk.open(operator, "/key", key="reply:erased")
    expect(operator.get_by_role("main")).to_contain_text("was erased with a person's data")
    assert PERSON not in operator.content()


def test_records_are_changed_in_bulk_once_it_was_shown_what_would_change(operator: Page, desk: Desk) -> None:
    keys = [f"bulk:{number}" for number in (1, 2, 3)]
    for key in keys:
        desk.s.ledger.fail(claim(desk.s, key), TimeoutError("slow"))
    claim(desk.s, "bulk:4")
    desk.open(operator, "/ledger", prefix="bulk:")
    operator.get_by_text("Act on all 4 of this page").click()
    operator.get_by_label("What to do").select_option("release")
    operator.get_by_role("button", name="See what it would do").click()
    expect(operator.get_by_role("main")).to_contain_text("3 would change, and 1 would be left alone")
    assert statuses(desk, keys) == {Status.FAILED}
    operator.get_by_label("Reason, for whoever").fill("the bank is back")
    operator.get_by_role("button", name="Release 3").click()
    expect(operator.get_by_role("status").filter(has_text="done")).to_contain_text("3 done, 1 left alone")
    assert statuses(desk, keys) == {Status.RELEASED}
    assert statuses(desk, ["bulk:4"]) == {Status.IN_PROGRESS}
    assert {("oncall", "release", key) for key in keys} <= set(desk.journal())


def statuses(desk: Desk, keys: list[str]) -> set[Status]:
    return {record.status for key in keys if (record := desk.s.ledger.get(key)) is not None}


# What resolves once a page that listens as well was told how things stand.
HEARD = """(address) => new Promise((done) => {
  const source = new EventSource(address);
  source.addEventListener("version", (event) => {
    if (event.data) { source.close(); done(event.data); }
  });
})"""


def test_a_tile_of_the_overview_changes_without_loading_the_page_again(viewer: Page, desk: Desk) -> None:
    desk.open(viewer)
    tile = viewer.locator(".tiles li").filter(has_text="in doubt")
    number = int(tile.locator("b").inner_text())
    expect(viewer.locator("#live")).to_have_text("live")
    viewer.evaluate(HEARD, desk.address("/live"))
    viewer.evaluate("window.stayed = true")
    doubted(desk.s, "live:held")
    expect(tile.locator("b")).to_have_text(str(number + 1))
    assert viewer.evaluate("window.stayed")


def test_live_traffic_is_counted_without_loading_the_page_again(viewer: Page, desk: Desk) -> None:
    desk.open(viewer)
    tile = viewer.locator(".tiles li").filter(has_text="completed")
    number = int(tile.locator("b").inner_text())
    expect(viewer.locator("#live")).to_have_text("live")
    viewer.evaluate(HEARD, desk.address("/live"))
    viewer.evaluate("window.stayed = true")
    desk.deliver("traffic-1", "traffic-2")
    expect(tile.locator("b")).to_have_text(str(number + 2))
    assert viewer.evaluate("window.stayed")


def test_a_viewer_finds_no_button_and_is_refused_by_hand(viewer: Page, desk: Desk) -> None:
    doubted(desk.s, "pay:looked-at")
    desk.s.documents.put("chat:kept", {"from": PERSON}, subject=PERSON)
    before, dead = desk.journal(), desk.inbox.dead()
    for path in desk.pages:
        desk.open(viewer, path)
        expect(viewer.get_by_role("main").locator("form[method=post]")).to_have_count(0)
        expect(viewer.get_by_role("main").get_by_role("radio")).to_have_count(0)
    desk.open(viewer, "/key", key="pay:looked-at")
    token = viewer.locator("input[name=form_token]").first.input_value()
    held = desk.s.ledger.get("pay:looked-at")
    assert held is not None
    records = json.dumps([(held.key, version_of(held))])
    forms: dict[str, dict[str, Any]] = {
        "/key": {"key": "pay:looked-at", "action": "release", "why": "mine"},
        "/reveal": {"key": KEY, "why": "mine"},
        "/switches": {"name": "mail", "on": "no", "why": "mine"},
        "/inbox": {"name": "echo", "until": "9e9", "confirmed": "yes", "why": "mine"},
        "/letter": {"name": "echo", "id": desk.inbox.dead()[0].id, "why": "mine"},
        "/bulk": {"action": "forget", "records": records, "confirmed": "yes", "why": "mine"},
        "/persons": {"person": PERSON, "confirmed": "yes", "why": "mine"},
    }
    for path, form in forms.items():
        answer = viewer.request.post(desk.base + path, form=form | {"form_token": token})
        assert answer.status == 403, path
    assert desk.s.ledger.get("pay:looked-at") == held
    assert (desk.journal(), desk.inbox.dead()) == (before, dead)
    assert desk.s.documents.get("chat:kept") is not None
    desk.s.documents.delete("chat:kept")


def test_it_all_works_without_scripts(visitor: Visitor, desk: Desk) -> None:
    completed(desk.s, "plain:done", {"sum": 42})
    desk.s.ledger.fail(claim(desk.s, "plain:failed"), TimeoutError("slow"))
    page = visitor.arrive(java_script_enabled=False)
    sign_in(page, desk, OPERATOR, "/ledger")
    page.get_by_label("Key begins with").fill("plain:")
    page.get_by_label("Status").select_option("failed")
    page.get_by_role("button", name="Search").click()
    expect(page.get_by_role("rowheader")).to_have_text(["plain:failed"])
    page.get_by_role("rowheader").get_by_role("link").click()
    page.get_by_role("radio", name="Release").check()
    page.get_by_label("Reason, for whoever").fill("try again")
    page.get_by_role("button", name="Do it").click()
    expect(page.get_by_role("status")).to_contain_text("is released now")
    desk.open(page, "/key", key="plain:done")
    page.get_by_label("Why you need to see it").fill("a customer asks")
    page.get_by_role("button", name="Show it").click()
    expect(page.locator("pre")).to_contain_text('"sum": 42')
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()


# What others wrote


@pytest.fixture
def planted(desk: Desk) -> Iterator[None]:
    """What nobody should write, wherever somebody can."""
    before = len(desk.inbox.dead())
    desk.deliver(*(f"bad {text}" for text in HOSTILE.values()))
    for name, text in HOSTILE.items():
        desk.s.ledger.fail(claim(desk.s, f"hostile:{text}"), RuntimeError(text))
        desk.s.ops.turn(f"{name} {text[:80]}", on=True, by=text[:60], why=text)
    completed(desk.s, "hostile-result", {"text": "".join(HOSTILE.values()) + "</pre>" + "y" * 10_000})
    assert until(lambda: len(desk.inbox.dead()) == before + len(HOSTILE))
    yield
    for name, text in HOSTILE.items():
        desk.s.ledger.forget(f"hostile:{text}")
        desk.s.ops.turn(f"{name} {text[:80]}", on=False, by="ann", why="over")


def is_harmless(page: Page) -> bool:
    strange = page.locator("img, main script, iframe, main [onerror], a[href^='javascript']").count()
    return page.evaluate("window.ran") is None and strange == 0


@pytest.mark.usefixtures("planted")
def test_what_others_wrote_is_shown_as_text_and_runs_nothing(operator: Page, desk: Desk) -> None:
    for path in desk.pages:
        desk.open(operator, path)
        assert is_harmless(operator), path
    for text in HOSTILE.values():
        desk.open(operator, "/ledger", prefix=f"hostile:{text}")
        operator.get_by_role("rowheader").get_by_role("link").click()
        written = text.replace("\u202e", "\\u202e").replace("\u200f", "\\u200f")
        expect(operator.get_by_role("heading", level=1)).to_have_text(f"hostile:{written}")
        assert is_harmless(operator), text
        desk.open(operator, "/own/names", name=text)
        assert is_harmless(operator), f"{text} on a page of the app's own"
    desk.open(operator, "/key", key="hostile-result")
    operator.get_by_label("Why you need to see it").fill(HOSTILE["script"])
    operator.get_by_role("button", name="Show it").click()
    expect(operator.locator("pre")).to_contain_text("</pre>yyyy")
    assert is_harmless(operator)


@pytest.mark.parametrize("key", ["a\x00b", "x" * 10_000, "\x1b[31m"], ids=["NUL", "10 KB", "escape"])
def test_a_key_that_cannot_be_is_refused_with_an_explanation(operator: Page, desk: Desk, key: str) -> None:
    answer = operator.goto(desk.address("/key", key=key))
    assert answer is not None
    assert answer.status in (400, 404)
    expect(operator.get_by_role("main")).to_contain_text("key")


# For everybody


def stops(page: Page) -> list[str]:
    """What Tab stops at until it comes round; each is seen to have the focus."""
    found: list[str] = []
    while True:
        page.keyboard.press("Tab")
        name, seen = page.evaluate(
            """() => {
              const at = document.activeElement, style = getComputedStyle(at);
              const seen = style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2;
              const box = at.getBoundingClientRect();
              return [at.dataset.stop ?? "", seen && box.right > 0 && box.bottom > 0];
            }"""
        )
        if not name or name in found:
            return found
        assert seen, f"{page.url}: nobody sees that the focus is at {name}"
        found.append(name)


def controls(page: Page) -> set[str]:
    """Everything on a page that can be used, marked by a name; of radio buttons, one for each group."""
    names: list[str] = page.evaluate(
        """() => [...document.querySelectorAll(
            "a[href], button, input:not([type=hidden]), select, textarea, summary, [tabindex='0']")]
          .filter((one) => !one.disabled && one.checkVisibility())
          .map((one, number) => one.dataset.stop = one.type === "radio" ? `radio ${one.name}`
            : `${number} ${one.tagName} ${one.name ?? ""} ${one.textContent.trim().slice(0, 20)}`)"""
    )
    return set(names)


def test_every_control_is_reached_by_tab_and_seen_to_have_the_focus(operator: Page, desk: Desk) -> None:
    # A live part that is replaced loses the marks of its controls.
    operator.add_init_script("delete window.EventSource")
    for path in desk.pages:
        desk.open(operator, path)
        operator.evaluate("document.activeElement.blur()")
        wanted = controls(operator)
        assert wanted - set(stops(operator)) == set(), path


def test_the_skip_link_comes_first_and_leads_past_the_menu(operator: Page, desk: Desk) -> None:
    for path in desk.pages:
        desk.open(operator, path)
        operator.keyboard.press("Tab")
        expect(operator.get_by_role("link", name="Skip to content")).to_be_in_viewport()
        operator.keyboard.press("Enter")
        expect(operator.locator("#main")).to_be_focused()


def shown(visitor: Visitor, desk: Desk, **options: Any) -> Iterator[tuple[str, Page]]:
    """Every page as an operator sees it, and those that have no address of their own."""
    page = visitor.arrive("oncall", **options)
    for path in (*desk.pages, "/ledger?prefix=none"):
        yield path, desk.open(page, path)
    for path, status in {"/nowhere": 404, "/key?key=never": 404, "/ledger?status=DONE": 400}.items():
        yield path, desk.open(page, path, status)
    desk.open(page, "/key", key=KEY)
    page.get_by_label("Why you need to see it").fill("to look at the page")
    page.get_by_role("button", name="Show it").click()
    expect(page.get_by_text("The journal has that you looked at it.")).to_be_visible()
    yield "a result", page
    desk.open(page, "/inbox", name="echo")
    page.get_by_text("Look or put back").first.click()
    yield "what can be done with a dead letter", page
    page.get_by_role("button", name="Put it back").first.click()
    expect(page).to_have_title("Put back · semel")
    yield "what would be put back", page
    desk.s.documents.put("chat:shown", {"from": PERSON}, subject=PERSON)
    desk.open(page, "/persons")
    page.get_by_label("Person, as the application names them").fill(PERSON)
    page.get_by_label("Reason, for whoever").fill("to look at the page")
    page.get_by_role("button", name="See what would be erased").click()
    expect(page.get_by_role("button", name="Erase it for good")).to_be_visible()
    yield "what would be erased", page
    desk.s.documents.delete("chat:shown")
    desk.open(page, "/ledger", prefix="charge:")
    page.get_by_text("of this page").first.click()
    page.get_by_role("button", name="See what it would do").click()
    expect(page).to_have_title("Release several · semel")
    yield "what would change", page
    stranger = visitor.arrive(**options)
    stranger.goto(f"{desk.root}/sign-in")
    assert stranger.title() == "Sign in · semel"
    yield "signing in", stranger


def serious(axe: Axe, page: Page, **options: Any) -> list[tuple[str, list[str]]]:
    """What axe finds on a page, and where."""
    found = axe.run(page, options={"resultTypes": ["violations"], "preload": False, **options}).response
    grave = [one for one in found["violations"] if one["impact"] in ("serious", "critical")]
    return [(one["id"], [node["html"][:200] for node in one["nodes"]]) for one in grave]


def test_axe_finds_nothing_serious_in_both_themes(visitor: Visitor, desk: Desk) -> None:
    axe, injected = Axe(), Axe(axe_script="0")
    for path, page in shown(visitor, desk, color_scheme="light", bypass_csp=True):
        assert serious(axe, page) == [], path
        page.emulate_media(color_scheme="dark")
        # A theme is colours, and nothing else.
        assert serious(injected, page, runOnly=["color-contrast", "link-in-text-block"]) == [], (
            f"{path}, dark"
        )
        page.emulate_media(color_scheme="light")


def test_no_page_is_wider_than_a_phone(visitor: Visitor, desk: Desk) -> None:
    phone = {"width": 380, "height": 800}
    for path, page in shown(visitor, desk, viewport=phone):
        assert page.evaluate("document.documentElement.scrollWidth") <= 380, path


def test_a_dead_letter_can_be_read_and_put_back_on_a_phone(visitor: Visitor, desk: Desk) -> None:
    page = visitor.arrive("oncall", viewport={"width": 380, "height": 800})
    desk.open(page, "/inbox", name="echo")
    row = page.get_by_role("row").filter(has_text="echo:bad-1")
    expect(row.get_by_role("rowheader")).to_contain_text("ValueError: it is bad")
    row.get_by_text("Look or put back").click()
    button = row.get_by_role("button", name="Put it back")
    button.scroll_into_view_if_needed()
    expect(button).to_be_in_viewport(ratio=1)
    assert page.get_by_role("region", name="Dead letters").last.evaluate(
        "(one) => one.scrollLeft === 0 && one.scrollWidth <= one.clientWidth"
    )


@pytest.mark.parametrize("width", [900, 1100, 1400])
def test_the_head_has_one_row_for_who_is_here_and_one_for_the_pages(
    visitor: Visitor, desk: Desk, width: int
) -> None:
    page = visitor.arrive("oncall", viewport={"width": width, "height": 800})
    desk.open(page)
    expect(page.locator("#live")).to_have_text("live")
    parts = (".brand", ".ledgers", ".find", "#live", ".leave", ".pages")
    *above, pages = (page.locator(f".bar {part}").bounding_box() for part in parts)
    middles = {round((box["y"] + box["height"] / 2) / 4) for box in above if box is not None}
    assert len(middles) == 1, above
    assert pages is not None
    assert pages["height"] < 45
    assert pages["y"] >= max(box["y"] + box["height"] for box in above if box is not None)
