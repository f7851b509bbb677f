"""The page in a real browser: it asks nothing of anyone, and does what its sliders, keys and patches promise."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
import pytest

from tests.browser import launch_browser
from tests.explanation.page.test_page import odd
from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Explanation
from vitral.explanation.page.page import notebook, write_page
from vitral.models.base import Grid

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

ATTENTION, MAP, WINDOW = "[data-canvas=attention]", "[data-canvas=map]", "[data-canvas=window]"
SIMILARITY, LIVE = "[data-canvas=similarity]", "#live"


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    with launch_browser() as found:
        yield found


class Visit:
    """A page that was opened, all that it said and all that it asked for."""

    def __init__(self, page: "Page") -> None:
        self.page = page
        self.said: list[str] = []
        self.asked: list[str] = []
        page.on("console", lambda message: self.said.append(message.text))
        page.on("pageerror", lambda error: self.said.append(str(error)))
        page.on("request", lambda request: self.asked.append(request.url))

    def canvas(self, selector: str) -> str:
        """The pixels of a canvas that is shown."""
        return self.page.locator(f"{selector}:visible").evaluate("canvas => canvas.toDataURL()")

    def live(self) -> str:
        return self.text(LIVE)

    def text(self, selector: str) -> str:
        """The words of a part that is shown, with plain spaces."""
        return (self.page.locator(selector).text_content() or "").replace("\xa0", " ")

    def slide(self, name: str, value: int) -> None:
        slider = self.page.locator(f"input[type=range][data-state={name}]:visible").first
        slider.fill(str(value))

    def click(self, pane: str, row: float, column: float) -> None:
        """Click at a share of the height and width of a picture."""
        picture = self.page.locator(f"[data-pane={pane}]:visible")
        box = picture.bounding_box()
        assert box is not None
        picture.click(position={"x": column * box["width"], "y": row * box["height"]})


@pytest.fixture
def visit(browser: "Browser", tmp_path: Path) -> Iterator["Opener"]:
    opener = Opener(browser, tmp_path / "page.html")
    yield opener
    opener.close()


class Opener:
    """Opens pages, and sees to it when they close that they kept quiet and asked for nothing but themselves."""

    def __init__(self, browser: "Browser", path: Path) -> None:
        self.browser, self.path = browser, path
        self.visits: list[Visit] = []

    def __call__(self, *explanations: Explanation, scheme: Literal["light", "dark"] = "light") -> Visit:
        write_page(self.path, explanations)
        context = self.browser.new_context(viewport={"width": 1280, "height": 800}, color_scheme=scheme)
        visit = Visit(context.new_page())
        self.visits.append(visit)
        visit.page.goto(self.path.as_uri())
        visit.page.locator("html[data-ready='0']").wait_for()
        return visit

    def close(self) -> None:
        for visit in self.visits:
            visit.page.context.close()
            assert visit.said == []
            assert [address for address in visit.asked if not address.startswith("data:")] == [self.path.as_uri()]


def top_cell(explanation: Explanation, layer: int, head: int, token: int) -> str:
    """The cell that a token looks at most, in the words of the page; head 0 is the mean of all."""
    prefix, columns = explanation.layout.prefix(), explanation.cells.columns
    weights = explanation.layers[layer].attention
    row = (weights[head - 1] if head else weights.mean(axis=0))[token, prefix:]
    cell = int(row.argmax())
    return f"attends most to row {cell // columns + 1}, column {cell % columns + 1} ({100 * row.max():.1f}%)"


def test_the_page_opens_by_itself_with_the_class_token_in_the_last_layer(visit: Opener) -> None:
    explanation = stand_in(registers=1)
    page = visit(explanation)
    told = page.text("[data-text=attention]")
    assert told.startswith("Layer 3, mean of 2 heads: the class token ")
    assert top_cell(explanation, 2, 0, 0) in told
    assert page.page.locator("[data-token='0']").get_attribute("aria-pressed") == "true"


def test_no_address_can_be_reached_from_the_page(visit: Opener) -> None:
    page = visit(stand_in())
    stopped = """new Promise(done => {
        document.addEventListener('securitypolicyviolation', event => done(event.effectiveDirective));
        fetch('http://127.0.0.1:9/').catch(() => setTimeout(done, 1000, 'nothing stopped it'));
    })"""
    assert page.page.evaluate(stopped) == "connect-src"
    assert "violates" in page.said[0]
    page.said.clear()


def test_the_sliders_of_layer_and_head_change_the_picture_and_its_words(visit: Opener) -> None:
    explanation = stand_in()
    page = visit(explanation)
    seen = [page.canvas(ATTENTION)]
    for name, value, layer, head in (("layer", 0, 0, 0), ("head", 1, 0, 1), ("head", 2, 0, 2), ("layer", 1, 1, 2)):
        page.slide(name, value)
        seen.append(page.canvas(ATTENTION))
        assert page.live().startswith(f"Layer {layer + 1}, {f'head {head}' if head else 'mean of 2 heads'}: ")
        assert top_cell(explanation, layer, head, 0) in page.live()
    assert len(set(seen)) == len(seen)
    assert page.page.locator("button[data-head='2']").get_attribute("aria-pressed") == "true"
    assert page.page.locator("input[data-state=layer]").get_attribute("aria-valuetext") == "2 of 3"


def test_choosing_a_patch_changes_every_picture_that_is_about_it(visit: Opener) -> None:
    explanation = stand_in(registers=2)
    page = visit(explanation)
    before = [page.canvas(name) for name in (ATTENTION, WINDOW, SIMILARITY)]
    page.click("attention", 0.1, 0.9)  # the first of six rows, the last of eight columns
    after = [page.canvas(name) for name in (ATTENTION, WINDOW, SIMILARITY)]
    assert all(old != new for old, new in zip(before, after, strict=True))
    assert "the patch in row 1, column 8 attends most to" in page.live()
    assert top_cell(explanation, 2, 0, 3 + 7) in page.live()
    page.click("similarity", 0.9, 0.1)
    nearest = np.argsort(-explanation.similarity[40])[1]
    assert page.live().startswith(
        f"The patch in row 6, column 1 is most similar to row {nearest // 8 + 1}, column {nearest % 8 + 1} ("
    )
    page.page.locator("[data-token='2']").click()
    assert "register 2 attends most to" in page.live()
    assert top_cell(explanation, 2, 0, 2) in page.live()


def test_the_keys_do_what_the_list_of_keys_says(visit: Opener) -> None:
    explanation = stand_in(registers=1)
    page = visit(explanation)
    page.click("attention", 0.55, 0.55)
    assert "row 4, column 5 attends" in page.live()
    for key, told in (
        ("ArrowUp", "row 3, column 5 attends"), ("ArrowLeft", "row 3, column 4 attends"),
        ("ArrowDown", "row 4, column 4 attends"), ("ArrowRight", "row 4, column 5 attends"),
        ("[", "Layer 2, mean of 2 heads"), ("[", "Layer 1, mean"), ("[", "Layer 1, mean"), ("]", "Layer 2, mean"),
        ("h", "Layer 2, head 1"), ("h", "Layer 2, head 2"), ("h", "Layer 2, mean"), ("H", "Layer 2, head 2"),
        ("c", "the class token attends"), ("c", "register 1 attends"), ("m", "Relevance: highest at"),
        ("m", "Occlusion: highest at"),
    ):  # fmt: skip
        page.page.keyboard.press(key)
        assert told in page.live(), key
    page.page.keyboard.press("n")
    page.page.keyboard.press("n")
    assert page.page.evaluate("document.activeElement.querySelector('h3').textContent") == "Each patch becomes a token"
    page.page.keyboard.press("?")
    assert page.page.locator("dialog").is_visible()
    page.page.locator("#letters").uncheck()
    page.page.get_by_role("button", name="Close").click()
    assert page.page.locator("dialog").is_hidden()
    page.page.keyboard.press("m")
    assert page.live().startswith("Occlusion: ")


def test_a_chosen_map_lies_over_the_part_of_the_photo_that_was_seen(visit: Opener) -> None:
    explanation = stand_in()
    page = visit(explanation)
    page.page.locator("fieldset label", has_text="Relevance").click()
    photo, seen = (page.page.locator(name).bounding_box() for name in (".photo", MAP))
    assert photo is not None
    assert seen is not None
    shares = [
        (seen["y"] - photo["y"]) / photo["height"], (seen["x"] - photo["x"]) / photo["width"],
        seen["height"] / photo["height"], seen["width"] / photo["width"],
    ]  # fmt: skip
    np.testing.assert_allclose(shares, explanation.photo[3:], atol=0.004)
    before = page.canvas(MAP)
    page.page.locator("fieldset label", has_text="rollout").click()
    assert page.canvas(MAP) != before
    assert page.text("[data-text=map]").startswith("Attention rollout: highest at")
    page.page.get_by_role("button", name="Show Relevance on the image").click()
    assert page.canvas(MAP) == before
    style = "canvas => [getComputedStyle(canvas).opacity, getComputedStyle(canvas).imageRendering]"
    assert page.page.locator(MAP).evaluate(style) == ["0.65", "pixelated"]
    page.slide("opacity", 20)
    page.page.locator("[data-state=smooth]").check()
    assert page.page.locator(MAP).evaluate(style) == ["0.2", "auto"]


def test_the_photo_is_shown_untouched_until_a_map_is_chosen(visit: Opener) -> None:
    page = visit(stand_in())
    shade = "getComputedStyle(document.querySelector('.crop-frame')).boxShadow"
    assert page.page.locator(MAP).is_hidden()
    assert page.page.evaluate(shade) == "none"
    assert page.page.locator("fieldset label", has_text="Photo").locator("input").is_checked()
    assert page.text("[data-text=map]") == "The photo, without a map."
    assert page.page.locator("[data-map][aria-pressed=true]").count() == 0
    page.page.get_by_role("button", name="Show Relevance on the image").click()
    assert page.page.locator(MAP).is_visible()
    assert page.page.evaluate(shade) != "none"
    for _ in range(4):  # the other three maps, then the photo again
        page.page.keyboard.press("m")
    assert page.page.locator(MAP).is_hidden()


def test_panes_of_the_window_and_marks_in_the_charts_choose_layer_and_head(visit: Opener) -> None:
    page = visit(stand_in())
    lattice = page.page.locator(".lattice")
    box = lattice.bounding_box()
    assert box is not None
    lattice.click(position={"x": 0.1 * box["width"], "y": 0.9 * box["height"]})
    assert page.live().startswith("Layer 1, head 2: ")
    page.page.locator("#depth-0 .layer-column[data-layer='2']").click(position={"x": 3, "y": 3})
    assert page.live().startswith("Layer 2, head 2: ")
    page.page.locator(".dot[data-layer='3'][data-head='1']").click(force=True)
    assert page.live().startswith("Layer 3, head 1: ")
    assert page.page.locator(".dot.here").count() == 1


PAGES = {
    "whole": lambda: [stand_in(Grid(7, 7), layers=12, heads=12, registers=4, name="a" * 90 + ".jpg")],
    "resnet": lambda: [stand_in_resnet()],
    "headless": lambda: [stand_in(classes=())],
    "several": lambda: [stand_in(name=f"{number}.jpg") for number in range(9)],
    "odd": lambda: [odd()],
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", PAGES)
def test_no_page_is_wider_than_its_window(visit: Opener, kind: str) -> None:
    page = visit(*PAGES[kind]())
    for width in (320, 390, 768):
        page.page.set_viewport_size({"width": width, "height": 800})
        assert page.page.evaluate("document.documentElement.scrollWidth") <= width


def test_every_link_of_the_navigation_fits_on_a_phone(visit: Opener) -> None:
    page = visit(stand_in(registers=1))
    page.page.set_viewport_size({"width": 360, "height": 800})
    boxes = [link.bounding_box() for link in page.page.locator("nav a").all()]
    assert len(boxes) == 7
    assert all(box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 360 for box in boxes)
    assert page.page.evaluate("document.querySelector('.bar-top').offsetHeight") < 130
    page.page.evaluate("window.scrollTo({top: 2000, behavior: 'instant'})")
    bar, link = page.page.locator(".bar-top").bounding_box(), page.page.locator("nav a").first.bounding_box()
    assert bar is not None
    assert link is not None
    assert bar["y"] < 0 <= link["y"]  # the links stay, the row of buttons above them leaves


def test_the_page_follows_the_dark_and_has_a_button_against_it(visit: Opener) -> None:
    colors = "[getComputedStyle(document.body).backgroundColor, getComputedStyle(document.body).color]"
    light, dark = visit(stand_in()), visit(stand_in(), scheme="dark")
    by_day, by_night = light.page.evaluate(colors), dark.page.evaluate(colors)
    assert by_day[0] == by_night[0].replace("20, 23, 27", "251, 250, 247")
    assert by_day[1] != by_night[1]
    for page, other in ((light, by_night), (dark, by_day)):
        page.page.locator("#theme").click()
        assert page.page.evaluate(colors) == other


def test_another_image_brings_its_own_pictures_and_keeps_what_was_chosen(visit: Opener) -> None:
    one, two = stand_in(), stand_in(seed=5, name="ant.jpg")
    page = visit(one, two)
    page.slide("layer", 0)
    before = page.canvas(ATTENTION)
    page.page.locator("[data-show='1']").click()
    page.page.locator("html[data-ready='1']").wait_for()
    assert page.canvas(ATTENTION) != before
    told = page.text("[data-text=attention]:visible")
    assert told.startswith("Layer 1")
    assert top_cell(two, 0, 0, 0) in told
    assert page.page.locator("nav a").first.get_attribute("href") == "#answer-1"


def test_hostile_names_are_shown_and_not_run(visit: Opener) -> None:
    page = visit(odd())
    assert page.text(".said").startswith(("<b onclick", "\\udcff"))
    assert page.page.locator("[onclick]").count() == 0


def test_every_control_has_a_name(visit: Opener) -> None:
    page = visit(stand_in(registers=1), stand_in())
    nameless = """[...document.querySelectorAll('button, input, [tabindex="0"]')].filter(part =>
        !(part.getAttribute('aria-label') || part.textContent.trim() || part.closest('label')?.textContent.trim()))
        .map(part => part.outerHTML)"""
    assert page.page.evaluate(nameless) == []


def test_a_notebook_shows_the_page_in_its_frame(browser: "Browser") -> None:
    page = browser.new_page()
    visit = Visit(page)
    page.set_content(f"<h1>cell</h1>{notebook(stand_in())}")
    frame = page.frame_locator("iframe")
    frame.locator("[data-text=attention]", has_text=re.compile("^Layer 3")).wait_for()
    assert visit.said == []
    page.close()


def test_a_hostile_explanation_cannot_leave_its_frame_in_a_notebook(browser: "Browser") -> None:
    page = browser.new_page()
    page.set_content(f"<h1>cell</h1>{odd()._repr_html_()}")
    assert page.locator("body > *").count() == 2  # the heading and the frame: nothing of the names became a tag
    page.frame_locator("iframe").locator("html[data-ready='0']").wait_for()
    assert page.frames[1].evaluate("window.origin") == "null"  # no cookies, no storage, no page around it
    reached = "() => { try { return parent.document.title } catch (error) { return error.name } }"
    assert page.frames[1].evaluate(reached) == "SecurityError"
    page.close()
