"""A Chromium that opens the dashboard, and what must never happen in it."""

import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
from playwright.sync_api import (
    Browser,
    BrowserContext,
    ConsoleMessage,
    Locator,
    Page,
    ViewportSize,
    expect,
    sync_playwright,
)

from launcher.paths import CHECKOUT
from launcher.testing.systems import LocalSystem

SCREENSHOTS: Final = CHECKOUT / ".artefacts" / "dashboard"
"""Kept for people to look at; git ignores them."""
WIDE: Final[ViewportSize] = {"width": 1360, "height": 900}
NARROW: Final[ViewportSize] = {"width": 400, "height": 800}
TIMEOUT_MS: Final = 60_000

_SCRIPTS: Final = Path(__file__).parent
_PROGRAMS: Final = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no window to draw, and takes two thirds of the processor time of the others."""
_REFUSED: Final = re.compile(
    "Failed to load resource: the server responded with a status of 4"
    "|WebSocket connection to .* failed: .* Unexpected response code: 403"
)
"""What Chromium writes when the API refuses something, as it shall: a wrong token, wrong SQL."""


@contextmanager
def running_browser() -> Iterator[Browser]:
    """Run Chromium for the length of a `with` block.

    Raises:
        pytest.fail.Exception: There is none.
    """
    program = next(filter(None, map(shutil.which, _PROGRAMS)), None)
    if program is None:
        pytest.fail("Chromium is missing: apt install chromium-headless-shell", pytrace=False)
    # Root has no sandbox to give away.
    expect.set_options(timeout=TIMEOUT_MS)
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        yield browser
        browser.close()


@dataclass
class Dashboard:
    """One page of the browser."""

    page: Page
    url: str
    wrongs: list[str] = field(default_factory=list)
    """Errors of scripts, of the console, and what the policy has kept from happening."""

    def open(self, place: str) -> None:
        """Go to a place and wait for its heading."""
        if not self.page.url.startswith(self.url):
            self.page.goto(f"{self.url}/dashboard/#/{place}")
        else:
            self.page.evaluate("place => { location.hash = `#/${place}`; }", place)
        expect(self.page.locator("main")).to_have_attribute("data-place", f"#/{place}")
        self.page.locator("main h1").wait_for()

    def run(self, script: str) -> Any:
        """Return what a script of this folder gives."""
        return self.page.evaluate((_SCRIPTS / script).read_text(encoding="utf-8"))

    def use_theme(self, name: str) -> None:
        """Make the page light or dark, as if the system were."""
        self.page.emulate_media(color_scheme="dark" if name == "dark" else "light")

    def keep_picture(self, name: str) -> None:
        SCREENSHOTS.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=SCREENSHOTS / f"{name}.png")


@contextmanager
def open_page(
    context: BrowserContext, system: LocalSystem, *, has_tour: bool = False
) -> Iterator[Dashboard]:
    """Open a page that is watched until the end of the `with` block.

    Args:
        context: The profile.
        system: Whose dashboard.
        has_tour: The tour is offered, as it is to somebody who has not been here before.

    Raises:
        AssertionError: Something went wrong in it.
    """
    page = context.new_page()
    page.set_default_timeout(TIMEOUT_MS)
    dashboard = Dashboard(page, system.api_url)

    def hear(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not _REFUSED.match(message.text):
            place = message.location.get("url", "")
            dashboard.wrongs.append(f"{message.type}: {message.text} {place}")

    page.on("console", hear)
    page.on("pageerror", lambda error: dashboard.wrongs.append(f"script: {error}"))
    page.add_init_script(
        "addEventListener('securitypolicyviolation', (event) =>"
        " console.error(`policy: ${event.violatedDirective} ${event.blockedURI}`));"
    )
    if not has_tour:
        page.add_init_script("localStorage.setItem('mqlake.tour', 'over');")
    try:
        yield dashboard
    finally:
        page.close()
    assert not dashboard.wrongs, "\n".join(dashboard.wrongs)


def fact(page: Page, name: str) -> Locator:
    """Return the value that stands below a name."""
    return page.locator(f".facts div:has(dt:text-is('{name}')) dd")
