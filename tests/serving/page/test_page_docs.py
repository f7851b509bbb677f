"""`/docs` in a real browser."""

from collections.abc import Callable

from tests.browser import expect
from tests.serving.client import photo
from tests.serving.page.visit import Visit
from vitral.serving.server import Server


def test_docs_show_the_examples_and_send_a_request(visit: Callable[..., Visit], server: Server) -> None:
    page = visit(server.url, "docs").page
    block = page.locator(".opblock", has=page.locator('[data-path="/v1/predict"]'))
    block.locator(".opblock-summary").click()
    expect(block.locator(".response .example").first).to_contain_text('"cat.jpg"')
    block.get_by_role("button", name="Try it out").click()
    block.get_by_role("button", name="Add string item").click()
    file = {"name": "cat.jpg", "mimeType": "image/jpeg", "buffer": photo()}
    block.locator("input[type=file]").set_input_files(file)  # type: ignore[arg-type]
    block.get_by_role("button", name="Execute").click()
    answered = block.locator(".live-responses-table .response-col_status").last
    expect(answered).to_contain_text("200")
