"""Chromium: a browser that tests look at pages with."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tests.servers.running import Unavailable

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# What Debian, others and Google call it.
NAMES = ("chromium", "chromium-browser", "google-chrome")
# Root may not start it in its sandbox; and in a container /dev/shm is too small for it.
OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--force-color-profile=srgb", "--hide-scrollbars")


def binary() -> str:
    """The browser of this machine; Playwright's own would be a download of its own."""
    for name in NAMES:
        if found := shutil.which(name):
            return found
    raise Unavailable("there is no Chromium: install your system's chromium")


@contextmanager
def chromium() -> Iterator["Browser"]:
    """The browser, without a window. While it runs, its thread has an event loop, and can run no other."""
    from playwright.sync_api import sync_playwright  # `make bench` installs servers, and no Playwright

    path = binary()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*OPTIONS])
        try:
            yield browser
        finally:
            browser.close()
