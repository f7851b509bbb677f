"""What an export can be: every format answers as the graph does, and tells of itself."""

import json
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tests.errors import raises
from tests.inference.exports import loaded, plan
from tests.processes import run_forked
from vitral.core.config import Size, union_members
from vitral.core.imports import load_openvino
from vitral.exporters.targets import (
    ExportPlan,
    OnnxTarget,
    OpenVinoTarget,
    Target,
    TorchTarget,
    build_onnx,
    finish_onnx,
)
from vitral.inference.engines.engine import PixelBatch
from vitral.inference.graph.onnx import OPSET

TARGETS = [target() for target in union_members(Target)]
FACTS = {"classes": json.dumps(["cat", "Ünlü <&>"]), "task": "classify"}


def pixels(batch: int = 3, size: tuple[int, int] = (24, 32)) -> PixelBatch:
    return np.random.default_rng(0).integers(0, 256, (batch, *size, 3), dtype=np.uint8)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_file_that_was_opened_again_answers_as_the_graph_does(target: Target, tmp_path: Path) -> None:
    found = plan(loaded(), metadata=FACTS)
    target.check(found.input_size)
    target.write(found, tmp_path)
    assert (tmp_path / target.file).is_file()
    engine = target.open(tmp_path)
    for batch in (1, 3, 5):
        wanted = found.graph(torch.from_numpy(pixels(batch))).numpy()
        np.testing.assert_allclose(engine.run(pixels(batch)), wanted, atol=1e-5)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.kind)
def test_a_file_may_be_for_one_batch(target: Target, tmp_path: Path) -> None:
    found = plan(loaded(), batch_size=2)
    target.write(found, tmp_path)
    engine = target.open(tmp_path)
    assert engine.run(pixels(2)).shape == (2, 10)
    with pytest.raises(Exception, match=r"(?i)shape|dimension"):
        engine.run(pixels(3))


def test_the_facts_are_in_the_metadata(tmp_path: Path) -> None:
    found = plan(loaded(), metadata=FACTS)
    for target in TARGETS:
        target.write(found, tmp_path)
    model = onnx.load(tmp_path / OnnxTarget.file)
    onnx.checker.check_model(model, full_check=True)
    assert {each.key: each.value for each in model.metadata_props} == FACTS
    assert [each.version for each in model.opset_import] == [OPSET] == [OnnxTarget.opset] == [OpenVinoTarget.opset]
    read = load_openvino().Core().read_model(str(tmp_path / OpenVinoTarget.file))
    assert {key: read.get_rt_info(["vitral", key]).astype(str) for key in FACTS} == FACTS
    notes = {"export.json": ""}
    torch.export.load(tmp_path / TorchTarget.file, extra_files=notes)
    assert json.loads(notes["export.json"]) == FACTS


def test_a_model_for_one_batch_says_so_at_both_ends() -> None:
    found = plan(loaded(), batch_size=7)
    model = finish_onnx(found, build_onnx(found))
    onnx.checker.check_model(model, full_check=True)
    [incoming], [outgoing] = model.graph.input, model.graph.output
    shapes = [[side.dim_value for side in end.type.tensor_type.shape.dim] for end in (incoming, outgoing)]
    assert shapes == [[7, 24, 32, 3], [7, 10]]


def test_what_is_written_leaves_the_model_that_it_was_made_of_alone() -> None:
    found = plan(loaded(), batch_size=4, metadata=FACTS)
    core = build_onnx(found)
    before = core.SerializeToString()
    finish_onnx(found, core)
    assert core.SerializeToString() == before


@pytest.mark.parametrize(
    ("found", "shape", "resizes"),
    [
        (plan(loaded()), ["batch", 24, 32, 3], False),
        (plan(loaded(), input_size=Size(40, 50)), ["batch", 40, 50, 3], True),
        (plan(loaded(channels=1), batch_size=8, input_size="dynamic"), [8, "height", "width", 1], True),
    ],
)
def test_a_plan_tells_what_comes_in(found: ExportPlan, shape: list[int | str], resizes: bool) -> None:
    assert (found.input_shape(), found.resizes) == (shape, resizes)


def test_openvino_is_not_for_pictures_of_any_size() -> None:
    with raises("config.conflict", "--image-size", "--to onnx"):
        OpenVinoTarget().check("dynamic")
    OpenVinoTarget().check(Size(40, 50))


@pytest.mark.parametrize(("target", "package"), [(OnnxTarget(), "onnxruntime"), (OpenVinoTarget(), "openvino")])
def test_a_package_that_is_missing_is_named(
    target: OnnxTarget | OpenVinoTarget, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with raises("config.missing_package", package, "vitral[deploy]"):
        target.check(Size(24, 32))


def test_nothing_that_tells_tales_is_imported(tmp_path: Path) -> None:
    script = (
        "import sys, pathlib\n"
        "from tests.inference.exports import loaded, plan\n"
        "from vitral.exporters.targets import OpenVinoTarget\n"
        "OpenVinoTarget().write(plan(loaded()), pathlib.Path(sys.argv[1]))\n"
        "assert 'openvino' in sys.modules\n"
        "assert [name for name in sys.modules if name.startswith('openvino_telemetry')] == []\n"
    )
    done = run_forked(str(tmp_path), code=script)
    assert done.returncode == 0, done.stderr
