"""One browser for all tests of the page; the camera is a picture that moves."""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import launch_browser
from tests.serving.page.visit import Visit
from vitral.serving.server import Server

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")


@pytest.fixture(scope="package")  # not of the session: one thread has one driver of browsers at a time
def browser() -> Iterator["Browser"]:
    with launch_browser(*CAMERA) as found:
        yield found


@pytest.fixture
def visit(browser: "Browser", server: Server) -> Iterator[Callable[..., Visit]]:
    """Opens pages, and sees to it when they close that they kept quiet and asked nobody but their server."""
    visits: list[Visit] = []

    def open_page(url: str = server.url, fragment: str = "", **options: Any) -> Visit:
        visits.append(Visit(browser, url, fragment, **options))
        return visits[-1]

    yield open_page
    for each in visits:
        each.close()
