"""The page when the server is busy or gone, in Chinese, in the dark, on a phone, and for those who do not see it."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from tests.browser import expect
from tests.serving.client import photo, tiny_server
from tests.serving.page.visit import Visit
from vitral.serving.config import ServeConfig
from vitral.serving.server import bind

if TYPE_CHECKING:
    from playwright.sync_api import Route

REFUSED = ("Failed to load resource",)  # chromium says so of every refusal
Open = Callable[..., Visit]


def test_a_server_that_stops_is_noticed_and_waited_for(visit: Open) -> None:
    with bind(ServeConfig(port=0)) as kept:  # so that nobody else gets the port in between
        port = kept.getsockname()[1]
        stop_and_return(visit, port)


def stop_and_return(visit: Open, port: int) -> None:
    with tiny_server(port=port) as first:
        page = visit(first.url).ready().look(photo())
    page.excused = REFUSED
    page.drop(photo(seed=2), "dog.jpg")
    page.complains("The server does not answer.")
    page.says(".said", "No answer yet")
    expect(page.part("image")).to_be_visible()
    with tiny_server(port=port):
        expect(page.page.locator("#visits li")).to_have_count(2)  # by itself
        expect(page.page.locator(".bars li").first).to_be_visible()
        expect(page.page.locator(".problem:visible")).to_have_count(0)
        page.tells(".meta", "dog.jpg")


def test_a_busy_server_is_asked_again_after_the_time_it_names(visit: Open) -> None:
    page = visit(alone=True).ready()
    page.excused = REFUSED
    refused: list[str] = []

    def refuse(route: "Route") -> None:
        if len(refused) < 2:
            refused.append(route.request.url)
            problem = '{"code": "serve.queue_full", "detail": "the queue is full", "request_id": "r1"}'
            route.fulfill(
                status=429, headers={"Retry-After": "2"}, body=problem, content_type="application/problem+json"
            )
        else:
            route.continue_()

    page.page.route("**/v1/*?*", refuse)
    page.page.clock.install(time=0)
    page.page.clock.pause_at(1)  # seconds; else it goes on by itself
    page.drop(photo())
    page.complains("The server is busy.")
    page.says(".problem-hint:visible", "Trying again in 2 s.")
    expect(page.page.locator(".bars li")).to_have_count(0)
    page.page.clock.run_for(1500)  # milliseconds
    page.says(".problem-hint:visible", "Trying again in 1 s.")
    assert len(refused) == 2
    page.page.clock.run_for(1000)
    expect(page.page.locator("#visits li")).to_have_count(1)
    expect(page.page.locator(".bars li").first).to_be_visible()
    expect(page.part("canvas")).to_be_visible()
    expect(page.page.locator(".problem:visible")).to_have_count(0)
    assert len(refused) == 2


def test_the_page_speaks_the_language_of_the_browser_and_can_switch(visit: Open) -> None:
    page = visit(locale="zh-TW").ready()
    expect(page.page.locator("html")).to_have_attribute("lang", "zh-CN")
    page.page.get_by_role("heading", name="vit 看到了什么").wait_for()
    page.look(photo())
    page.announces("最关注")
    page.drop(b"hello", "notes.txt", "text/plain")
    page.complains("notes.txt 不是图片。")
    page.page.locator("#language").click()
    expect(page.page.locator("html")).to_have_attribute("lang", "en")
    page.complains("notes.txt is not an image.")
    page.page.reload()
    page.ready().page.get_by_role("heading", name="What does vit see?").wait_for()


def test_both_languages_have_the_same_texts(visit: Open) -> None:
    read = """async () => {
        const {TEXTS} = await import('/page/texts.js');
        const kinds = (texts) => Object.fromEntries(Object.entries(texts).map(([key, value]) => [key, typeof value]));
        return [kinds(TEXTS.en), kinds(TEXTS.zh)];
    }"""
    page = visit().ready()
    english, chinese = page.page.evaluate(read)
    assert english == chinese


def test_the_page_follows_the_dark_and_has_a_button_against_it(visit: Open) -> None:
    page = visit(color_scheme="dark").ready()
    body = expect(page.page.locator("body"))
    body.to_have_css("background-color", "rgb(20, 23, 27)")
    page.page.locator("#theme").click()
    body.to_have_css("background-color", "rgb(251, 250, 247)")


@pytest.mark.parametrize("width", [pytest.param(320, marks=pytest.mark.slow), 390])
def test_nothing_is_wider_than_a_phone(visit: Open, width: int) -> None:
    page = visit(viewport={"width": width, "height": 800}, has_touch=True, is_mobile=True).ready()
    wide = "document.documentElement.scrollWidth"
    assert page.page.evaluate(wide) <= width
    page.says(".drop-title", "Take or choose a photo")
    page.look(photo(), "a" * 90 + ".jpg")
    page.drop(b"hello", "b" * 90 + ".txt", "text/plain")
    page.complains("b" * 90 + ".txt is not an image.")
    assert page.page.evaluate(wide) <= width
    hint, actions = page.boxes(".problem-hint, .problem-actions")
    assert actions["top"] > hint["bottom"]  # the text has the whole width
    page.page.get_by_role("button", name="Compare").tap()
    expect(page.page.locator("#visits li")).to_have_count(2)
    assert page.page.evaluate(wide) <= width
    first, second = page.boxes("[data-part=photo]")
    assert second["top"] > first["bottom"]  # one above the other


STATES: dict[str, dict[str, Any]] = {
    "light": {},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("state", STATES)
def test_axe_finds_nothing_that_keeps_anyone_out(visit: Open, state: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="pip install 'vitral[test]'").Axe()
    page = visit(**STATES[state]).ready()

    def violations() -> list[str]:
        found = axe.run(page.page).response["violations"]
        return [f"{each['id']}: {node['html']}" for each in found for node in each["nodes"]]

    assert violations() == []
    page.look(photo())
    page.drop(b"hello", "notes.txt", "text/plain")
    page.complains("notes.txt is not an image.")
    page.click_patch(0.6, 0.6)
    page.announces("the patch in row 3, column 4 attends")
    page.page.get_by_role("button", name="Compare").click()
    expect(page.page.locator("#visits li")).to_have_count(2)
    expect(page.part("canvas", 1)).to_be_visible()
    assert violations() == []
