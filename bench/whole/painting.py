"""How soon the dashboard is seen, in a real Chromium."""

import os
import re
import shutil
from typing import TYPE_CHECKING, Final

from bench.results.figures import Figures, figure
from bench.systems.system import Bench
from mqlake.api_client import TOKEN_FILE

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PROGRAM: Final = "chromium"
WARM: Final = 1
TIMES: Final = 5
_FIRST_PAINT: Final = "performance.getEntriesByName('first-contentful-paint')[0].startTime"


def measure_first_paint(bench: Bench) -> list[Figures]:
    """From opening the dashboard to its first text, and to its first numbers; nothing is cached."""
    program = shutil.which(PROGRAM)
    try:
        # Only tests and this need it: it is not installed with the rest.
        from playwright.sync_api import sync_playwright
    except ImportError:
        program = None
    if program is None:
        bench.note("the first paint wants chromium and playwright; bin/test installs it")
        return []
    bench.await_quiet()
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=arguments)
        found = [_paint(bench, browser) for _ in range(WARM + TIMES)][WARM:]
        browser.close()
    return found


def _paint(bench: Bench, browser: "Browser") -> Figures:
    context = browser.new_context(ignore_https_errors=True)
    url = bench.state.api_url
    token = (bench.data_dir / TOKEN_FILE).read_text(encoding="ascii").strip()
    context.request.post(f"{url}/api/v1/login", data={"token": token})
    page = context.new_page()
    page.goto(f"{url}/dashboard/")
    page.locator(".tile dd").filter(has_text=re.compile("[0-9]")).first.wait_for()
    numbers = page.evaluate("performance.now()")
    first = page.evaluate(_FIRST_PAINT)
    context.close()
    return {
        figure("dashboard, first paint", "ms"): float(first),
        figure("dashboard, first numbers", "ms"): float(numbers),
    }
