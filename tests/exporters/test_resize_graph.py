"""Resizing inside a graph: not one pixel may differ from what training and evaluation see."""

from typing import get_args

import numpy as np
import onnx
import pytest
from onnx import helper

from tests.errors import raises
from vitral.core.config import Size, union_members
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Filter, Resize
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import crop_and_resize
from vitral.exporters.resize_graph import add_resizing, fixed_resize_weights
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget
from vitral.inference.engines.engine import INPUT_NAME, PixelBatch
from vitral.inference.graph.onnx import IR_VERSION, OPSET

IMAGE = Size(24, 32)
SIZES = ((24, 32), (100, 150), (17, 9), (8, 300), (131, 24), (65, 48), (49, 33))
VIEWS = [view(filter=how) for view in union_members(EvalCropConfig) for how in get_args(Filter)] + [
    CenterCrop(fraction=1.0),
    CenterCrop(rounding="down"),
    CenterCrop(aspect="squash", rounding="down"),
]


def back(batch: int | str = "batch") -> onnx.ModelProto:
    """A model that gives what it sees."""
    ends = [helper.make_tensor_value_info(name, 2, [batch, *IMAGE, 3]) for name in (INPUT_NAME, "logits")]
    graph = helper.make_graph([helper.make_node("Identity", [INPUT_NAME], ["logits"])], "vitral", ends[:1], ends[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)


def pictures(size: tuple[int, int]) -> PixelBatch:
    return np.random.default_rng(size).integers(0, 256, (2, *size, 3), dtype=np.uint8)


def wanted(pixels: PixelBatch, needs: Preprocessing) -> PixelBatch:
    size = Size(*pixels.shape[1:3])
    return np.stack([crop_and_resize(each, size, needs.crop.plan(size, needs.image_size)) for each in pixels])


@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_pictures_of_any_size_become_the_very_pixels_that_the_model_sees(view: EvalCropConfig) -> None:
    needs = Preprocessing(image_size=IMAGE, crop=view)
    model = add_resizing(back(), needs, "dynamic")
    onnx.checker.check_model(model)
    engine = OnnxTarget().engine(model)
    for size in SIZES:
        pixels = pictures(size)
        assert np.array_equal(engine.run(pixels), wanted(pixels, needs)), size


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
@pytest.mark.parametrize("view", VIEWS, ids=repr)
def test_pictures_of_one_size_do_too_even_where_numbers_have_32_bits(
    view: EvalCropConfig, target: OnnxTarget | OpenVinoTarget
) -> None:
    needs = Preprocessing(image_size=IMAGE, crop=view)
    for size in SIZES[1:4]:
        model = add_resizing(back(), needs, Size(*size))
        onnx.checker.check_model(model)
        pixels = pictures(size)
        assert np.array_equal(target.engine(model).run(pixels), wanted(pixels, needs)), size


def test_the_input_keeps_its_name_and_tells_what_may_come_in() -> None:
    def shape(model: onnx.ModelProto) -> list[int | str]:
        (entry,) = model.graph.input
        assert entry.name == INPUT_NAME
        return [side.dim_param or side.dim_value for side in entry.type.tensor_type.shape.dim]

    needs = Preprocessing(image_size=IMAGE)
    assert shape(add_resizing(back(), needs, "dynamic")) == ["batch", "height", "width", 3]
    assert shape(add_resizing(back(5), needs, Size(40, 50))) == [5, 40, 50, 3]


def test_weights_are_whole_numbers_that_add_up_to_their_unit() -> None:
    found = fixed_resize_weights(100, 24, "bilinear")
    assert found.weights.shape == (24, 100)
    assert bool((found.weights == found.weights.round()).all())
    assert float((found.weights.sum(dim=1) - 2**found.bits).abs().max()) <= 5  # each of up to nine is rounded by half


def test_a_side_whose_sums_would_not_be_exact_is_refused() -> None:
    assert fixed_resize_weights(24 * 20, 24, "bilinear").bits <= 19
    with raises("config.out_of_range", "--image-size", 2400, 24):
        add_resizing(back(), Preprocessing(image_size=IMAGE, crop=Resize()), Size(2400, 32))
