"""What `export.json` says."""

import torch

from vitral.inference.exported import (
    Quantization,
    RunnerCheck,
    Trial,
    package_versions,
)


def test_versions_are_of_what_is_installed() -> None:
    assert package_versions()["torch"] == torch.__version__
    assert {"python", "numpy", "pillow", "onnx", "onnxruntime", "openvino"} <= package_versions().keys()


def test_a_trial_and_a_choice_are_told_in_a_line() -> None:
    trial = Trial(
        method="static",
        floats=("blocks.0.mlp",),
        holds=True,
        difference=0.2,
        agreement=0.994,
        lost=-0.002,
        rate=12.34,
    )
    assert trial.line() == (
        "int8, static with blocks.0.mlp in float32: same top-1 for 99.40%, accuracy +0.20 points: accepted"
    )
    chosen = Quantization(
        method="static", layers=46, floats=("blocks.0.mlp",), calibrated=128, float_rate=4.0, trials=(trial,)
    )
    assert chosen.lines() == [
        "int8, static: static 12.3, float32 4.0 images per second; kept in float32: patch embedding, head, blocks.0.mlp"
    ]
    assert Quantization.from_json(chosen.to_json()) == chosen


def test_of_many_parts_the_first_are_named() -> None:
    parts = tuple(f"blocks.{layer}.mlp" for layer in range(12))
    chosen = Quantization(method="static", layers=0, floats=parts, calibrated=1, float_rate=4.0, trials=())
    assert chosen.lines()[0].endswith("head, blocks.0.mlp, blocks.1.mlp, blocks.2.mlp, blocks.3.mlp and 8 more")


def test_the_check_of_the_runner_is_told_in_a_line() -> None:
    alike = RunnerCheck(files=16, agreement=1.0, difference=0.01)
    assert alike.line() == "run.py was checked on 16 files: it gives the same predictions"
    unsure = RunnerCheck(files=16, agreement=14 / 16, difference=0.01)
    assert unsure.line().endswith("except for 2 of which the export is uncertain")
