"""The models behind the routes: two at a time, and replaced while they answer."""

import gc
import logging
import shutil
import weakref
from pathlib import Path

import pytest
from torch.nn import Parameter

from tests.inference.truth import loaded
from tests.models.variants import small
from tests.serving.client import ask, photo
from vitral.inference.predictor import Predictor
from vitral.serving.config import ServeConfig
from vitral.serving.server import Server
from vitral.weights.save import save


def write(folder: Path, depth: int) -> None:
    model, bundle = loaded(small(depth=depth))
    shutil.rmtree(folder, ignore_errors=True)
    save(model, folder, classes=bundle.classes, transform=bundle.transform)


def scores(server: Server, model: str) -> list[float]:
    return list(ask(server.url, f"/v1/predict?model={model}", photo()).json["predictions"][0]["scores"])


def weights_of(server: Server, name: str) -> Parameter:
    model = server.service.models[name].model.predictor.model
    assert model is not None
    return model.get_parameter("head.linear.weight")


def test_two_models_are_reloaded_each_by_itself_and_the_old_ones_are_freed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "vitral")
    one, two = tmp_path / "one", tmp_path / "two"
    write(one, 1)
    write(two, 2)
    with Server({"one": one, "two": two}, ServeConfig(port=0, engine="eager", decoders=1)) as server:
        truths = {
            depth: list(Predictor(loaded(small(depth=depth)), engine="eager")(photo()).scores) for depth in (1, 2, 3)
        }
        assert (scores(server, "one"), scores(server, "two")) == (truths[1], truths[2])
        old = [weakref.ref(weights_of(server, name)) for name in ("one", "two")]
        write(one, 3)
        (two / "model.safetensors").write_bytes(b"broken")  # in place, while the server runs
        assert scores(server, "two") == truths[2]
        gc.disable()  # which may come to it or not
        try:
            server.reload()
            assert [each() is None for each in old] == [True, False]
        finally:
            gc.enable()
        assert (scores(server, "one"), scores(server, "two")) == (truths[3], truths[2])
        assert "model two was not reloaded" in caplog.text
        metrics = ask(server.url, "/metrics").body.decode()
        assert 'vitral_reloads_total{outcome="refused"} 1.0' in metrics
        (two / "model.safetensors").unlink()
        shutil.rmtree(two)
        server.reload()
        assert scores(server, "two") == truths[2]
