"""Vitral: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

The names below are imported when they are first used, so that `import vitral` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from vitral.core.imports import without_collecting

if TYPE_CHECKING:
    from vitral.core.config import Config
    from vitral.core.errors import ConfigError, DataError, ServeError, VitralError, WeightsError
    from vitral.core.machine import keep_freed_memory
    from vitral.data.datasets.shards.pack import pack
    from vitral.data.datasets.source import open_data
    from vitral.data.decoding.header import Decoding
    from vitral.data.doctor.diagnosis import check
    from vitral.data.loading.loader import ImagePipeline, Loader
    from vitral.data.transforms.preprocessing import Preprocessing
    from vitral.explanation.explain import explain
    from vitral.explanation.walkthrough.describe import describe
    from vitral.inference.predictor import Predictor
    from vitral.models import Features, Resnet, Vit, attention_maps, attention_weights, build, model_config
    from vitral.recipes.recipe import Recipe
    from vitral.runs.evaluate import evaluate
    from vitral.runs.export import export
    from vitral.runs.result import Run
    from vitral.runs.train import resume, train
    from vitral.weights.adapt import adapt
    from vitral.weights.bundle import Bundle
    from vitral.weights.convert import convert
    from vitral.weights.load import load

__version__ = "0.1.0"

__all__ = [
    "Bundle",
    "Config",
    "ConfigError",
    "DataError",
    "Decoding",
    "Features",
    "ImagePipeline",
    "Loader",
    "Predictor",
    "Preprocessing",
    "Recipe",
    "Resnet",
    "Run",
    "ServeError",
    "Vit",
    "VitralError",
    "WeightsError",
    "adapt",
    "attention_maps",
    "attention_weights",
    "build",
    "check",
    "convert",
    "describe",
    "evaluate",
    "explain",
    "export",
    "keep_freed_memory",
    "load",
    "model_config",
    "open_data",
    "pack",
    "resume",
    "train",
]

_HOMES = {
    "Bundle": "vitral.weights.bundle",
    "Config": "vitral.core.config",
    "ConfigError": "vitral.core.errors",
    "DataError": "vitral.core.errors",
    "Decoding": "vitral.data.decoding.header",
    "Features": "vitral.models",
    "ImagePipeline": "vitral.data.loading.loader",
    "Loader": "vitral.data.loading.loader",
    "Predictor": "vitral.inference.predictor",
    "Preprocessing": "vitral.data.transforms.preprocessing",
    "Recipe": "vitral.recipes.recipe",
    "Resnet": "vitral.models",
    "Run": "vitral.runs.result",
    "ServeError": "vitral.core.errors",
    "Vit": "vitral.models",
    "VitralError": "vitral.core.errors",
    "WeightsError": "vitral.core.errors",
    "adapt": "vitral.weights.adapt",
    "attention_maps": "vitral.models",
    "attention_weights": "vitral.models",
    "build": "vitral.models",
    "check": "vitral.data.doctor.diagnosis",
    "convert": "vitral.weights.convert",
    "describe": "vitral.explanation.walkthrough.describe",
    "evaluate": "vitral.runs.evaluate",
    "explain": "vitral.explanation.explain",
    "export": "vitral.runs.export",
    "keep_freed_memory": "vitral.core.machine",
    "load": "vitral.weights.load",
    "model_config": "vitral.models",
    "open_data": "vitral.data.datasets.source",
    "pack": "vitral.data.datasets.shards.pack",
    "resume": "vitral.runs.train",
    "train": "vitral.runs.train",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    with without_collecting():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
