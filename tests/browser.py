"""A real, headless Chromium for tests of the web page."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

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


@contextmanager
def chromium() -> Iterator[Browser]:
    """Debian's Chromium with a new, empty profile.

    Fails if it is not installed, and says how to install it.
    """
    from playwright.sync_api import sync_playwright

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
def watched_pages(browser: Browser, *, provoked: str = "(?!)") -> Iterator[Callable[..., Page]]:
    """Opens addresses, each in a new profile with the given options.

    Fails if a page's console has an error, except for those that match ``provoked``.
    """
    contexts: list[BrowserContext] = []
    complaints: list[str] = []

    def show(address: str, **options: object) -> Page:
        context = browser.new_context(**options)  # type: ignore[arg-type]
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda one: complaints.append(one.text) if one.type == "error" else None)
        page.goto(address)
        return page

    yield show
    for context in contexts:
        context.close()
    assert [one for one in complaints if not re.match(provoked, one)] == []
