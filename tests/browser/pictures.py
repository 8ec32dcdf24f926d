"""Make the pictures of the docs from the running dashboard: python -m tests.browser.pictures.

What they show is made up from a seed and a clock that stands still, so that a picture changes only when its
page does. Another page is another line in `PICTURES`.
"""

import struct
import threading
import zlib
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from hashlib import sha256
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import uvicorn
from playwright.sync_api import Browser, Page, expect
from starlette.applications import Starlette

import semel
from semel.dashboard import dashboard
from semel.doors.inbox import Message, open_inbox
from semel.model import Claimed
from semel.ops.model import Action
from semel.stores.memory import MemoryStore
from semel.testing import FakeClock
from tests.servers.chromium import chromium
from tests.servers.running import HOST, free_port, until

FOLDER = Path(__file__).parents[2] / "docs" / "pictures"
THEMES = ("light", "dark")
WIDTH = 1100
TROUBLED = "charge:order-1265"
# Some of those on the picture of the ledger, for the sake of variety.
FATES = {1262: "failed", 1268: "released"}
# The orders that nobody could ship, by the minute.
LETTERS = {
    61: (1312, ConnectionError("the warehouse did not answer")),
    64: (1315, LookupError("no address for order 1315")),
    73: (1389, ConnectionError("the warehouse did not answer")),
    74: (1390, ConnectionError("the warehouse closed the connection")),
}
# What the pages of the docs show, and the most of its height that does.
PICTURES = {
    "overview": ("/", 900),
    "ledger": ("/ledger?prefix=charge:order-126", 940),
    "key": (f"/key?key={TROUBLED}", 700),
    "doubts": ("/doubts", 620),
    "switches": ("/switches", 620),
    "inbox": ("/inbox?name=orders", 620),
    "journal": ("/journal", 620),
}
NOON = 1_767_268_800.0  # on the first of January 2026
TOKEN = "token of the one who takes pictures"
MOST_COLOURS = 256


# What is in the ledger


def happened(clock: FakeClock, store: MemoryStore) -> semel.Semel:
    """An hour and a half of a shop: charges and their duplicates, and what went wrong."""
    workers = [semel.Semel(store, clock=clock, worker=f"web-{number}:charge") for number in (1, 2)]
    rng, orders, keepers = Random(7), iter(range(1000, 3000)), [one.keep_rates() for one in workers]
    for minute in range(90):
        for order in islice(orders, rng.randint(3, 9)):
            for _ in range(rng.choice((1, 1, 1, 2, 3))):
                one_call(rng, rng.choice(workers), order)
        if minute == 40:
            troubles(clock, *workers)
        if minute in LETTERS:
            letter(workers[0], *LETTERS[minute])
        for keeper in keepers:
            keeper.flush()
        clock.advance(60)
    open_inbox(workers[0], "orders").put(
        *(Message(f"ship:order-{order}", {}) for order in (1431, 1432, 1433))
    )
    clock.advance(40)
    return workers[0]


def one_call(rng: Random, s: semel.Semel, order: int) -> None:
    if f"charge:order-{order}" == TROUBLED:
        return
    claim = s.ledger.claim(f"charge:order-{order}", lease=30, ttl=7 * 86_400)
    if not isinstance(claim, Claimed):
        return
    fate = rng.choices(("failed", "released", "completed"), (3, 6, 91))[0]
    match FATES.get(order, fate):
        case "failed":
            s.ledger.fail(claim, ValueError("the card was refused"))
        case "released":
            s.ledger.release(claim, TimeoutError("the bank did not answer within 5 s"))
        case _:
            s.ledger.complete(claim, {"paid": True})


def troubles(clock: FakeClock, s: semel.Semel, other: semel.Semel) -> None:
    """A key with a history, some that nobody knows about, and what an operator did."""
    s.ledger.claim(TROUBLED, lease=30, ttl=86_400)
    clock.advance(45)
    again = other.ledger.claim(TROUBLED, lease=30, ttl=86_400)
    assert isinstance(again, Claimed)
    other.ledger.release(again, TimeoutError("the bank did not answer within 5 s"))
    clock.advance(20)
    last = s.ledger.claim(TROUBLED, lease=30, ttl=86_400)
    assert isinstance(last, Claimed)
    s.ledger.doubt(last)
    for number in (1, 2, 3):
        clock.advance(70)
        claim = other.ledger.claim(f"payout:{2026000 + number}", lease=30, ttl=86_400)
        assert isinstance(claim, Claimed)
        other.ledger.doubt(claim)
    for name, on, why in (
        ("newsletter", True, "wrong link in the January issue"),
        ("mail", True, "the provider answers 503"),
        ("mail", False, "the provider is back"),
    ):
        clock.advance(30)
        s.ops.turn(name, on=on, by="ann", why=why)
    s.ops.perform(
        Action(name="complete", key="payout:2026003", by="bob", why="in the bank's list of today", result={})
    )
    s.ops.reveal("charge:order-1003", by="ann", why="the customer asks which card it was")


def letter(s: semel.Semel, order: int, error: Exception) -> None:
    """An order that nobody could handle."""

    def ship(_message: Message) -> None:
        worker.stop()
        raise error

    ship.__module__, ship.__qualname__ = "shop.orders", "ship"
    inbox = open_inbox(s, "orders")
    inbox.put(Message(f"ship:order-{order}", {"order": order}))
    worker = inbox.worker(ship, max_attempts=1)
    worker.run()


# Taking them


@contextmanager
def served() -> Iterator[str]:
    """The dashboard of such a ledger, on a port of its own."""
    clock = FakeClock(NOON - 5700)
    s = happened(clock, MemoryStore(clock))
    app, inboxes = Starlette(), {"orders": open_inbox(s, "orders")}
    digest = sha256(TOKEN.encode()).hexdigest()
    app.mount("/semel", dashboard(s, tokens={"ann": ("operator", digest)}, inboxes=inboxes))
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, host=HOST, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        assert until(lambda: server.started)
        yield f"http://{HOST}:{port}/semel"
    finally:
        server.should_exit = True
        thread.join()


def take(browser: Browser, base: str, theme: Any) -> Iterator[tuple[str, bytes]]:
    """Each picture in a theme."""
    page = browser.new_page(color_scheme=theme, viewport={"width": WIDTH, "height": 800})
    page.goto(f"{base}/sign-in")
    page.get_by_label("Your token").fill(TOKEN)
    page.get_by_role("button", name="Sign in").click()
    for name, (path, most) in PICTURES.items():
        answer = page.goto(base + path)
        assert answer is not None
        assert (answer.status, page.url) == (200, base + path)
        expect_live(page)
        yield f"{name}-{theme}.png", page.screenshot(full_page=True, clip=_clip(page, most))


def expect_live(page: Page) -> None:
    """Whether a page is live is in its picture too, once it has found out."""
    if page.locator("[data-live]").count():
        expect(page.locator("#live")).to_have_text("live")


def _clip(page: Page, most: int) -> Any:
    height = page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
    return {"x": 0, "y": 0, "width": WIDTH, "height": min(most, int(height))}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    with ExitStack() as stack:
        base, browser = stack.enter_context(served()), stack.enter_context(chromium())
        for theme in THEMES:
            for name, png in take(browser, base, theme):
                (FOLDER / name).write_bytes(smaller(png))


# A smaller file of the same picture


def smaller(png: bytes) -> bytes:
    """A picture with a palette: text and lines have few colours that matter."""
    width, height, size, rows = read(png)
    pixels = [bytes(row[at : at + 3]) for row in rows for at in range(0, width * size, size)]
    palette = [colour for colour, _ in Counter(pixels).most_common(MOST_COLOURS)]
    places = {colour: at for at, colour in enumerate(palette)}
    for colour in set(pixels) - places.keys():
        places[colour] = places[min(palette, key=lambda one: _distance(one, colour))]
    lines = bytearray()
    for row in range(height):
        lines += b"\0" + bytes(places[one] for one in pixels[row * width : (row + 1) * width])
    header = struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)
    parts = ((b"IHDR", header), (b"PLTE", b"".join(palette)), (b"IDAT", zlib.compress(bytes(lines), 9)))
    return SIGNATURE + b"".join(_chunk(*part) for part in (*parts, (b"IEND", b"")))


SIGNATURE = b"\x89PNG\r\n\x1a\n"


def read(png: bytes) -> tuple[int, int, int, list[bytes]]:
    """The width, height, bytes of a pixel and rows of a picture as Chromium writes it: 8 bits, no lacing."""
    chunks: dict[bytes, bytes] = {}
    at = len(SIGNATURE)
    while at < len(png):
        length, kind = struct.unpack_from(">I4s", png, at)
        chunks[kind] = chunks.get(kind, b"") + png[at + 8 : at + 8 + length]
        at += length + 12
    width, height, depth, colours, *_, laced = struct.unpack(">IIBBBBB", chunks[b"IHDR"])
    assert (depth, colours in (2, 6), laced) == (8, True, 0)
    size = 3 if colours == 2 else 4
    return width, height, size, _unfiltered(zlib.decompress(chunks[b"IDAT"]), width * size, size)


def _unfiltered(data: bytes, stride: int, size: int) -> list[bytes]:
    rows, before = list[bytes](), bytes(stride)
    for start in range(0, len(data), stride + 1):
        kind, row = data[start], bytearray(data[start + 1 : start + 1 + stride])
        for at in range(stride if kind else 0):
            left = row[at - size] if at >= size else 0
            corner = before[at - size] if at >= size else 0
            row[at] = (row[at] + _predicted(kind, left, before[at], corner)) & 255
        before = bytes(row)
        rows.append(before)
    return rows


def _predicted(kind: int, left: int, above: int, corner: int) -> int:
    """What a row's filter takes a byte for; the numbers are those of the PNG specification."""
    match kind:
        case 1:
            return left
        case 2:
            return above
        case 3:
            return (left + above) // 2
    guess = left + above - corner
    return min((left, above, corner), key=lambda one: abs(guess - one))


def _distance(one: bytes, other: bytes) -> int:
    return sum((a - b) ** 2 for a, b in zip(one, other, strict=True))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


if __name__ == "__main__":
    main()
