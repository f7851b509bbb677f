"""The report in a real browser: pictures enlarge by mouse and keyboard, without a script, on a phone too."""

from pathlib import Path

from tests.browser import launch_browser
from tests.runs.report.stories import whole_story
from vitral.runs.report.report import write_report


def test_a_picture_fills_the_window_on_a_click_and_shrinks_on_the_next(tmp_path: Path) -> None:
    write_report(tmp_path / "report.html", whole_story(tmp_path))
    with launch_browser() as browser:
        page = browser.new_page(viewport={"width": 360, "height": 700}, java_script_enabled=False)
        page.goto((tmp_path / "report.html").as_uri())
        picture, opened = page.locator("#mistakes summary").nth(1), page.locator(".zoom[open]")
        small = picture.locator("img").bounding_box()
        picture.click()
        large = picture.locator("img").bounding_box()
        assert opened.count() == 1
        assert small is not None
        assert large is not None
        assert small["width"] < 200
        assert 300 < large["width"] <= 360
        assert (large["x"], large["y"]) == (16, 16)
        page.mouse.click(10, 10)  # anywhere
        assert opened.count() == 0
        picture.focus()
        page.keyboard.press("Enter")
        assert opened.count() == 1
