"""Which way to quantise, and what stays in float: decided by measuring."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from tests.errors import raises
from tests.inference.exports import album, loaded, plan, sure, truth
from vitral.exporters import quantize
from vitral.exporters import quantize as quantise
from vitral.exporters.quantize import (
    PREFERENCE,
    Quantised,
    Quantising,
    group_of,
    layers_of,
    measured,
    quantised,
    sensitive,
    stages,
    timed,
)
from vitral.exporters.targets import OnnxTarget, OpenVinoTarget
from vitral.exporters.verify import INT8, Album, Sitting, judge, seen
from vitral.inference.engines.engine import Bytes, Numbers
from vitral.weights.load import Loaded


def quantising(found: Loaded, target: OnnxTarget | OpenVinoTarget, judging: Album) -> Quantising:
    own = plan(found, precision="int8")
    sitting = Sitting(judging, own.needs, ())
    told = truth(found, sitting)
    return Quantising(
        own.core(),
        target,
        seen(album().samples, album().calibrating, own.needs),
        lambda model: judge(target.engine(model), told, sitting, INT8, "images", (32,)),
    )


def spoilt() -> Loaded:
    """A model of which one layer has weights, for an input that is always zero, beside which the others vanish."""
    found = loaded(channels=1)
    with torch.no_grad():
        found.model.get_parameter("blocks.1.mlp.expand.bias")[0] = -1000.0  # of which GELU makes zero
        found.model.get_parameter("blocks.1.mlp.contract.weight")[:, 0] = 3000.0
    return found


@pytest.mark.parametrize("target", [OnnxTarget(), OpenVinoTarget()], ids=lambda target: target.kind)
def test_a_sound_model_holds_with_every_layer_in_bytes(target: OnnxTarget | OpenVinoTarget) -> None:
    model = loaded(channels=1)
    found = quantised(quantising(model, target, sure(model)))
    assert isinstance(found, Quantised)
    assert [trial.method for trial in found.notes.trials] == list(target.methods)
    assert all(trial.holds and trial.rate for trial in found.notes.trials)
    assert (found.notes.floats, found.notes.layers, found.notes.calibrated) == ((), 10, 16)
    fastest = max(found.notes.trials, key=lambda trial: (trial.rate or 0) * PREFERENCE[trial.method])
    assert found.notes.method == fastest.method
    assert found.notes.lines()[0].endswith("in float stay patch embedding, head")


def test_the_part_that_sways_the_answers_stays_in_float() -> None:
    work = quantising(spoilt(), OnnxTarget(), sure(spoilt()))
    layers = layers_of(work.core)
    ranges = measured(work.core, layers, work.target.engine).ranges(work.calibrating)
    assert sensitive(work, "static", layers, ranges)[0] == "blocks.1.mlp"
    found = quantised(work)
    assert [(trial.floats, trial.holds) for trial in found.notes.trials if trial.method == "static"] == [
        ((), False),
        (("blocks.1.mlp",), True),
    ]
    assert (found.notes.floats, found.notes.layers) == (("blocks.1.mlp",), 8)
    assert "blocks.1.mlp" in found.notes.lines()[0]
    assert found.notes.trials[0].line().endswith("it does not hold")


def test_where_nothing_holds_there_is_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantise, "LEVELS", 1)
    with raises("export.int8_inaccurate", "int8", "%"):
        quantised(quantising(loaded(channels=1), OpenVinoTarget(), album()))


def test_a_model_without_such_layers_is_refused() -> None:
    work = quantising(loaded(channels=1), OnnxTarget(), album())
    for node in work.core.graph.node:
        node.name = f"head.{node.name}"
    with raises("config.unsupported", "--int8"):
        quantised(work)


def test_trials_go_on_until_a_single_part_is_left_in_bytes() -> None:
    assert stages(24) == [0, 1, 2, 4, 8, 16, 20, 22, 23]
    assert stages(5) == [0, 1, 2, 4]
    assert stages(1) == [0]


def test_a_group_is_half_a_block() -> None:
    assert group_of("body.blocks.11.mixer.qkv.q.MatMul_8") == "blocks.11.mixer"
    assert group_of("body.blocks.11.mlp.expand.MatMul_8") == "blocks.11.mlp"


def test_rates_are_of_the_quickest_round(monkeypatch: pytest.MonkeyPatch) -> None:
    moments = iter(np.cumsum([0, 9, 0, 2, 0, 5, 0, 1, 0, 4, 0, 3, 0, 8]).tolist())
    monkeypatch.setattr(quantize, "perf_counter", lambda: next(moments))
    asked: list[str] = []

    @dataclass(frozen=True)
    class Named:
        tell: Callable[[], None]

        def run(self, pixels: Bytes) -> Numbers:
            self.tell()
            return np.zeros((len(pixels), 2), dtype=np.float32)

    engines = {name: Named(lambda name=name: asked.append(name)) for name in "ab"}  # type: ignore[misc]
    assert timed(dict(engines), np.zeros((8, 1, 1, 1), dtype=np.uint8)) == {"a": 8.0, "b": 2.0}
    assert asked == list("abababab")  # in turns, so that a busy moment hits all alike
