"""Vitral: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

The names below are imported when they are first used, so that `import vitral` does not wait for torch.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING

from vitral.importing import without_collecting

if TYPE_CHECKING:
    from vitral.allocator import keep_freed_memory
    from vitral.config import Config
    from vitral.data.decoder.header import Decoding
    from vitral.data.doctor.check import check
    from vitral.data.loader.loader import Loader, Sight
    from vitral.data.sources.pack import pack
    from vitral.data.sources.source import open_data
    from vitral.data.transforms.preprocessing import Preprocessing
    from vitral.deploy.predictor import Predictor
    from vitral.errors import ConfigError, DataError, ServeError, VitralError, WeightsError
    from vitral.explain.describe import describe
    from vitral.explain.explain import explain
    from vitral.model import Features, Resnet, Vit, attention_maps, attention_weights, build, model_config
    from vitral.recipe import Recipe
    from vitral.run.evaluation import evaluate
    from vitral.run.exporting import export
    from vitral.run.outcome import Run
    from vitral.run.start import resume, train
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
    "Loader",
    "Predictor",
    "Preprocessing",
    "Recipe",
    "Resnet",
    "Run",
    "ServeError",
    "Sight",
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
    "Config": "vitral.config",
    "ConfigError": "vitral.errors",
    "DataError": "vitral.errors",
    "Decoding": "vitral.data.decoder.header",
    "Features": "vitral.model",
    "Loader": "vitral.data.loader.loader",
    "Predictor": "vitral.deploy.predictor",
    "Preprocessing": "vitral.data.transforms.preprocessing",
    "Recipe": "vitral.recipe",
    "Resnet": "vitral.model",
    "Run": "vitral.run.outcome",
    "ServeError": "vitral.errors",
    "Sight": "vitral.data.loader.loader",
    "Vit": "vitral.model",
    "VitralError": "vitral.errors",
    "WeightsError": "vitral.errors",
    "adapt": "vitral.weights.adapt",
    "attention_maps": "vitral.model",
    "attention_weights": "vitral.model",
    "build": "vitral.model",
    "check": "vitral.data.doctor.check",
    "convert": "vitral.weights.convert",
    "describe": "vitral.explain.describe",
    "evaluate": "vitral.run.evaluation",
    "explain": "vitral.explain.explain",
    "export": "vitral.run.exporting",
    "keep_freed_memory": "vitral.allocator",
    "load": "vitral.weights.load",
    "model_config": "vitral.model",
    "open_data": "vitral.data.sources.source",
    "pack": "vitral.data.sources.pack",
    "resume": "vitral.run.start",
    "train": "vitral.run.start",
}


class _Facade(ModuleType):
    """A module in which a public name stays what it is, though a package has the same name."""

    def __setattr__(self, name: str, value: object) -> None:
        # To import anything from vitral.train would else put that package in the place of `vitral.train(...)`.
        if name not in _HOMES or not isinstance(value, ModuleType):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Facade


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    with without_collecting():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
