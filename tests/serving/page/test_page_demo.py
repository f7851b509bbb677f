"""`vitral serve` on the model of the demo, as a person starts it, in a real browser."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

import vitral
from tests.browser import expect
from tests.serving.client import SECONDS
from tests.serving.page.visit import Visit
from tests.serving.process import Process
from vitral.serving.page.page import example_images

REFUSED = ("Failed to load resource",)  # chromium says so of every refusal


@pytest.mark.slow
def test_the_page_of_the_demo_answers_until_its_server_stops(visit: Callable[..., Visit], tmp_path: Path) -> None:
    run = vitral.train("sample", recipe="sample", epochs=1, out=tmp_path / "sample")
    name, data = list(example_images().items())[-1]
    truth = vitral.Predictor(run)(data)
    process = Process(str(run.path), engine="auto")
    try:
        page = visit(process.url).ready()
        page.page.get_by_role("heading", name="What does sample see?").wait_for()
        page.page.get_by_role("button", name="Try this picture: Ankle boot").press("Enter")
        expect(page.page.locator("#visits li")).to_have_count(1)
        page.says(".said", truth.labels[0])
        page.says(".sure", f"{100 * truth.scores[0]:.1f}%")
        page.tells(".meta", Path(name).name)
        page.tells(".telling", "7 \u00d7 7 patches")
        page.click_patch(0.5, 0.5)
        page.announces("the patch in row 4, column 4 attends most to")
        process.process.send_signal(signal.SIGTERM)
        assert process.process.wait(SECONDS) == 0
        page.excused = REFUSED
        page.click_patch(0.1, 0.1)
        page.complains("The server does not answer.")
        page.says(".said", truth.labels[0])  # what was answered stays
    finally:
        process.end()
