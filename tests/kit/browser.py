"""A real, headless Chromium for tests of the web page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, Page, ViewportSize

#: No sandbox, since tests run as root; nothing that would call other machines.
ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
#: As long as pytest waits: how long a page takes depends on what else the machine does.
PATIENCE_MS = 300_000
DESKTOP: ViewportSize = {"width": 1280, "height": 720}


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium with a new, empty profile.

    Fails if it is not installed, and says how to install it.
    """
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    path = shutil.which("chromium")
    if path is None:
        pytest.fail(
            "The page's tests need Chromium: install it (on Debian and Ubuntu: apt-get install"
            " chromium), or run 'make setup' as root."
        )
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=list(ARGUMENTS))
        try:
            yield browser
        finally:
            browser.close()


@contextmanager
def watched_page(tab: Page, *, provoked: str = "(?!)") -> Iterator[Callable[..., Page]]:
    """Opens addresses in a tab, which is left empty: a new process for each would take a second.

    Fails if the console has an error, except for those that match ``provoked``.
    """
    complaints: list[str] = []

    def raised(error: Error) -> None:
        complaints.append(str(error))

    def said(message: ConsoleMessage) -> None:
        if message.type == "error":
            complaints.append(message.text)

    def show(address: str, viewport: ViewportSize = DESKTOP) -> Page:
        tab.set_viewport_size(viewport)
        tab.goto(address)
        return tab

    tab.set_default_timeout(PATIENCE_MS)
    tab.on("pageerror", raised)
    tab.on("console", said)
    yield show
    tab.remove_listener("pageerror", raised)
    tab.remove_listener("console", said)
    tab.unroute_all(behavior="ignoreErrors")
    # By the page itself, so that its process stays.
    tab.evaluate("sessionStorage.clear(); location.replace('about:blank')")
    tab.wait_for_url("about:blank")
    assert [one for one in complaints if not re.match(provoked, one)] == []
