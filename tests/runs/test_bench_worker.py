"""Our engines as contestants."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.inference.graph.test_token_merging import loaded as random_model
from tests.inference.truth import GRAPHS
from tests.models.variants import small
from vitral.exporters.verify import ReferenceEngine
from vitral.models import Resnet, Rope2d
from vitral.runs.bench import BASELINE, ENGINES
from vitral.runs.bench_worker import NAME, baseline_calls, build_engine, load_model, prepare_timing, random_pixels
from vitral.weights.bundle import write_bundle


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "vitral compiled"])
def test_every_engine_answers_as_the_model_does(name: str) -> None:
    model = random_model(small())
    pixels = random_pixels(model.bundle, 3)
    engine = build_engine(name, model, 1, pixels)
    truth = ReferenceEngine(model).run(pixels)
    np.testing.assert_allclose(engine.run(pixels), truth, atol=0.2 if "int8" in name else 1e-4)


def test_the_name_tells_how_many_are_merged() -> None:
    model = random_model(small(depth=3))
    pixels = random_pixels(model.bundle, 2)
    whole, merged = (build_engine(f"vitral eager{more}", model, 1, pixels) for more in ("", " merging 6"))
    assert np.abs(whole.run(pixels) - merged.run(pixels)).max() > 1e-3
    found = NAME.fullmatch("vitral openvino int8 merging 12")
    assert found
    assert (found["kind"], found["int8"], found["per_layer"]) == ("openvino", " int8", "12")


def test_what_an_engine_refuses_is_refused() -> None:
    model = random_model(small(position=Rope2d()))
    with raises("config.unsupported", "model.position"):
        build_engine("vitral eager merging 6", model, 1, random_pixels(model.bundle, 1))


def test_int8_is_refused_where_there_is_nothing_to_quantize() -> None:
    model = random_model(GRAPHS["resnet"])
    for name in ("vitral onnxruntime int8", "vitral openvino int8"):
        with raises("config.unsupported", "int8"):
            build_engine(name, model, 1, random_pixels(model.bundle, 1))


def test_a_model_is_a_name_or_a_bundle(tmp_path: Path) -> None:
    model, bundle = random_model(small())
    write_bundle(tmp_path / "own", bundle, model.state_dict(), "")
    assert load_model(str(tmp_path / "own")).bundle.model == bundle.model
    named = load_model("Ti/16").bundle
    assert (named.model.head.kind, len(named.classes)) == ("linear", 1000)
    assert '"gelu"' in named.model.to_json()


def test_a_resnet_by_name_needs_no_gelu() -> None:
    assert isinstance(load_model("R50x1").bundle.model, Resnet)


def test_the_product_is_the_same_by_every_library() -> None:
    products = [way() for way in baseline_calls()]
    assert len(products) == 1 + torch.backends.mkldnn.is_available()
    for product in products:
        assert isinstance(product, torch.Tensor)
        torch.testing.assert_close(product, products[0], rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("name", [BASELINE, "vitral eager"])
def test_a_turn_gives_seconds(name: str, tmp_path: Path) -> None:
    model, bundle = random_model(small())
    write_bundle(tmp_path / "own", bundle, model.state_dict(), "")
    turn = prepare_timing(name, str(tmp_path / "own"), 1)
    assert 0 < turn("2 0") < 60
