"""One browser for all tests of the page; the camera is a picture that moves."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import launch_browser
from tests.serving.page.visit import Visit, new_page
from vitral.serving.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="package")  # not of the session: one thread has one driver of browsers at a time
def browser() -> Iterator["Browser"]:
    with launch_browser(*CAMERA) as found:
        yield found


@pytest.fixture(scope="package")
def spare() -> "list[Page]":
    """Pages that a test has left as they were: to open a new one takes longer than most tests of it."""
    return []


@pytest.fixture
def visit(browser: "Browser", spare: "list[Page]", server: Server) -> Iterator[Callable[..., Visit]]:
    """Opens pages, and sees to it when they close that they kept quiet and asked nobody but their server.

    With options, or with `alone`, it is a page of a browser of its own, which no other test gets.
    """
    visits: list[tuple[Visit, bool]] = []

    def open_page(url: str = server.url, fragment: str = "", alone: bool = False, **options: Any) -> Visit:
        is_usual = not alone and not options
        page = spare.pop() if is_usual and spare else new_page(browser, **options)
        visits.append((Visit(page, url, fragment), is_usual))
        return visits[-1][0]

    yield open_page
    for each, is_usual in visits:
        try:
            each.close()
        except BaseException:
            each.page.context.close()
            raise
        if is_usual:
            spare.append(each.page)
        else:
            each.page.context.close()
