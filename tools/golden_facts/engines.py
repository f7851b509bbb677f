"""Engines: the logits and features of every engine for fixed bundles, and of every export that was kept."""

from pathlib import Path
from typing import Any

import numpy as np

from tools.golden_facts.models import hash_of
from tools.golden_facts.names import method, public, refused

ENGINES = ("eager", "compiled", "onnxruntime", "openvino")
BUNDLES = ("classify", "hybrid", "resnet", "lora")
EXPORTS = ("onnx", "openvino", "onnx-int8")
ROWS = 5


def engines(before: Path) -> dict[str, Any]:
    """Values and hashes by engine and bundle."""
    found: dict[str, Any] = {}
    pixels = np.random.default_rng(0).integers(0, 256, (ROWS, 16, 16, 3), dtype=np.uint8)
    for bundle in BUNDLES:
        for engine in ENGINES if bundle == "classify" else ("eager", "onnxruntime", "openvino"):
            found |= answers(f"{engine} {bundle}", before / "bundles" / bundle, engine, pixels)
    found |= answers("eager masked", before / "bundles/masked", "eager", pixels, logits=False)
    for export in EXPORTS:
        found |= answers(f"export {export}", before / "exports" / export, "auto", pixels, features=False)
    return found


def answers(
    name: str, model: Path, engine: str, pixels: Any, logits: bool = True, features: bool = True
) -> dict[str, Any]:
    """What a model answers to pixels; the error if it does not."""
    wanted = [*(["logits"] if logits else []), *(["features"] if features else [])]
    found: dict[str, Any] = {}
    try:
        predictor = public("Predictor")(str(model), engine=engine)
        for answer in wanted:
            values = method(predictor, f"Predictor.{answer}")(pixels)
            found[f"{name} | {answer} hash"] = hash_of({answer: values})
            if answer == "logits":
                found[f"{name} | {answer}"] = values.tolist()
    except Exception as error:
        found[f"{name} | refused"] = refused(error)
    return found
