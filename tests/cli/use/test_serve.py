"""`vitral serve`: its arguments, and the same answer from the command line, Python and HTTP."""

import json
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from threading import Event

import numpy as np
import pytest

from tests.errors import raises
from tests.inference.truth import loaded
from tests.models.variants import small
from tests.serving.client import ask, photo
from vitral.cli import main
from vitral.cli.use.serve import parse_models
from vitral.inference.predictor import Predictor
from vitral.serving.config import ServeConfig
from vitral.serving.server import Server
from vitral.weights.save import save


def test_models_have_names(tmp_path: Path) -> None:
    odd = tmp_path / "a=b"
    odd.mkdir()
    assert parse_models(["runs/cats", "dogs=runs/dogs/best", str(odd)]) == {
        "cats": "runs/cats",
        "dogs": "runs/dogs/best",
        "a-b": str(odd),
    }
    with raises("config.conflict", "cats"):
        parse_models(["runs/cats", "cats=runs/dogs"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--host", "0.0.0.0"], "config.no_token"),
        (["--tls-cert", "cert.pem"], "config.missing_value"),
        (["--port", "70000"], "config."),
    ],
)
def test_wrong_options_are_refused_before_anything_is_loaded(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VITRAL_TOKEN", raising=False)
    with pytest.raises(SystemExit) as end:
        main(["serve", "runs/nowhere", *words])
    assert end.value.code == 2
    assert code in capsys.readouterr().err


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def run_until_ready(monkeypatch: pytest.MonkeyPatch, *words: str) -> tuple[str, list[str]]:
    """What is printed on a desktop's terminal once the server is ready, and the addresses that are opened."""
    opened, is_open, terminal = list[str](), Event(), Terminal()

    def open_page(address: str) -> None:
        opened.append(address)
        is_open.set()

    def serve(models: object, on_ready: Callable[[str], None], **options: object) -> None:
        on_ready(f"http://{options['host']}:8000")

    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr("webbrowser.open", open_page)
    monkeypatch.setattr("vitral.serving.serve.serve", serve)
    monkeypatch.setattr(sys, "stderr", terminal)
    with pytest.raises(SystemExit) as end:
        main(["serve", "runs/cats", *words])
    assert end.value.code == 0
    is_open.wait(0.0 if "--no-browser" in words else 10.0)
    return terminal.getvalue(), opened


def test_the_page_opens_with_the_token_in_its_fragment(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, opened = run_until_ready(monkeypatch, "--host", "192.0.2.7", "--token", "a+b&c")
    assert opened == ["http://192.0.2.7:8000/#token=a%2Bb%26c"]
    assert f"the page: {opened[0]}\n" in caplog.text


def test_a_code_for_phones_is_printed_on_a_network_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    printed, opened = run_until_ready(monkeypatch, "--host", "192.0.2.7", "--token", "abc", "--no-browser")
    rows = printed.splitlines()
    assert set(printed) <= set("█▀▄ \n")
    assert {len(row) for row in rows} == {33}
    assert len(rows) == 17  # a line is two rows of the code, which is square
    assert opened == []
    printed, opened = run_until_ready(monkeypatch, "--no-browser")
    assert (printed, opened) == ("", [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("engine", ["eager", "openvino"])
def test_the_same_image_has_the_same_answer_everywhere(
    engine: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if engine != "eager":
        pytest.importorskip(engine)
    model, bundle = loaded(small())
    save(model, tmp_path / "model", classes=bundle.classes, transform=bundle.transform)
    image = tmp_path / "photo.jpg"
    image.write_bytes(photo(rows=300, columns=200))
    with pytest.raises(SystemExit) as end:
        main(["predict", str(tmp_path / "model"), str(image), "--format", "jsonl"])
    assert end.value.code == 0
    said = json.loads(capsys.readouterr().out)["answers"]
    python = Predictor(tmp_path / "model")(image)
    with Server({"it": tmp_path / "model"}, ServeConfig(port=0, engine=engine, decoders=1)) as server:
        (served,) = ask(server.url, "/v1/predict", image.read_bytes()).json["predictions"]
    assert [each["class"] for each in said] == list(python.labels) == served["labels"]
    np.testing.assert_allclose([each["probability"] for each in said], python.scores, atol=1e-6)
    np.testing.assert_allclose(served["scores"], python.scores, atol=1e-6)
