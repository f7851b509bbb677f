"""A visit to the page in a real browser: what a person does there, and all that the page says and asks for."""

from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser import MILLISECONDS, expect

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Error, JSHandle, Locator, Page, Request

TRANSFER = """([data, name, type]) => {
    const transfer = new DataTransfer(), bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
    transfer.items.add(new File([bytes], name, {type}));
    return transfer;
}"""
BOXES = "parts => parts.map((part) => part.getBoundingClientRect().toJSON())"
ANSWERED = "html[data-ready] .panel:first-child .bars li >> nth=0"


QUIET = {"viewport": {"width": 1280, "height": 800}, "locale": "en-US", "reduced_motion": "reduce"}
CLIPBOARD = ["clipboard-read", "clipboard-write"]


def new_page(browser: "Browser", **options: Any) -> "Page":
    """A page of a browser of its own."""
    context = browser.new_context(**(QUIET | {"permissions": CLIPBOARD} | options))
    context.set_default_timeout(MILLISECONDS)
    return context.new_page()


class Visit:
    """A page that was opened. `excused` are parts of the messages that chromium writes for refused requests."""

    def __init__(self, page: "Page", url: str, fragment: str = "") -> None:
        self.page, self.url = page, url
        self.said, self.asked = list[str](), list[str]()
        self.excused: tuple[str, ...] = ()
        page.on("console", self._hear)
        page.on("pageerror", self._fail)
        page.on("request", self._note)
        page.goto(f"{url}/{fragment}")

    def _hear(self, message: "ConsoleMessage") -> None:
        self.said.append(message.text)

    def _fail(self, error: "Error") -> None:
        self.said.append(str(error))

    def _note(self, request: "Request") -> None:
        self.asked.append(request.url)

    def ready(self) -> "Visit":
        self.page.locator("html[data-ready]").wait_for()
        return self

    def close(self) -> None:
        """Leave the page as it was before; it kept quiet, and asked nobody but its server."""
        self.page.evaluate("localStorage.clear(); sessionStorage.clear()")
        self.page.goto("about:blank")
        for event, listener in (("console", self._hear), ("pageerror", self._fail), ("request", self._note)):
            self.page.remove_listener(event, listener)
        assert [text for text in self.said if not any(part in text for part in self.excused)] == []
        assert [url for url in self.asked if not url.startswith((f"{self.url}/", "blob:", "data:", "about:"))] == []

    def drop(self, data: bytes, name: str = "cat.jpg", kind: str = "image/jpeg", panel: int = 0) -> None:
        self.page.locator(".panel").nth(panel).dispatch_event("drop", {"dataTransfer": self.transfer(data, name, kind)})

    def transfer(self, data: bytes, name: str, kind: str) -> "JSHandle":
        return self.page.evaluate_handle(TRANSFER, [b64encode(data).decode(), name, kind])

    def look(self, data: bytes, name: str = "cat.jpg") -> "Visit":
        """Drop the first photo and wait for the prediction and the maps, with which it is remembered and announced."""
        self.drop(data, name)
        self.page.locator(ANSWERED).wait_for()
        self.page.locator("#controls").wait_for()
        expect(self.page.locator("#visits li")).to_have_count(1)
        return self

    def part(self, name: str, panel: int = 0) -> "Locator":
        return self.page.locator(".panel").nth(panel).locator(f"[data-part={name}]")

    def says(self, selector: str, text: str) -> None:
        """Wait until the first such part has this text."""
        expect(self.page.locator(selector).first).to_have_text(text)

    def tells(self, selector: str, text: str) -> None:
        """Wait until the first such part contains this text."""
        expect(self.page.locator(selector).first).to_contain_text(text)

    def announces(self, text: str) -> None:
        """Wait until those who do not see the page are told this."""
        self.tells("#live", text)

    def complains(self, title: str) -> None:
        """Wait until a problem of this title is shown."""
        expect(self.page.locator(".problem:visible .problem-title")).to_have_text(title)

    def questions(self) -> list[str]:
        """The requests for answers of a model so far."""
        return [url for url in self.asked if url.startswith(f"{self.url}/v1/")]

    def boxes(self, selector: str) -> list[dict[str, float]]:
        """Where all such parts are at one moment."""
        return list(self.page.locator(selector).evaluate_all(BOXES))

    def map(self, panel: int = 0) -> str:
        return str(self.part("canvas", panel).evaluate("canvas => canvas.toDataURL()"))

    def click_patch(self, row: float, column: float) -> None:
        """Click at a share of the height and width of the grid."""
        box = self.part("grid").bounding_box()
        assert box is not None
        self.part("grid").click(position={"x": column * box["width"], "y": row * box["height"]})

    def copied(self, kind: str) -> str:
        button = self.page.locator(f"[data-copy={kind}]")
        name = button.text_content()
        button.click()
        self.tells("#toast:visible", f"Copied as {name}.")
        return str(self.page.evaluate("navigator.clipboard.readText()"))

    def choose(self, path: Path) -> None:
        self.page.locator("#file").set_input_files(path)
