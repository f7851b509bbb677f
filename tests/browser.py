"""A real browser for the tests of pages; without one they are skipped."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator
    from playwright.sync_api._generated import LocatorAssertions

MILLISECONDS = 60_000  # until a page shows what is expected, on however busy a machine
CHROMIUM = next((found for name in ("chromium", "chromium-browser") if (found := shutil.which(name))), "")


@contextmanager
def launch_browser(*flags: str) -> Iterator["Browser"]:
    """Debian's chromium, without a window."""
    driver = pytest.importorskip(
        "playwright.sync_api", reason="playwright is not installed: pip install 'vitral[test]'"
    )
    if not CHROMIUM:
        pytest.skip("there is no chromium: apt-get install chromium")
    with driver.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", *flags])
        yield found
        found.close()


def expect(part: "Locator") -> "LocatorAssertions":
    """What a part of a page must come to: the assertions wait, since a page shows its answers one after the other."""
    from playwright.sync_api import expect as expect_soon

    expect_soon.set_options(timeout=MILLISECONDS)
    return expect_soon(part)
