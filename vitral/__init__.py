"""Vitral: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

The names below are imported when they are first used, so that `import vitral` does not wait for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitral.config import Config
    from vitral.errors import ConfigError, DataError, ServeError, VitralError, WeightsError
    from vitral.explain.describe import describe
    from vitral.model import Features, Resnet, Vit, attention_maps, attention_weights, build, model_config
    from vitral.model.allocator import keep_freed_memory

__version__ = "0.1.0"

__all__ = [
    "Config",
    "ConfigError",
    "DataError",
    "Features",
    "Resnet",
    "ServeError",
    "Vit",
    "VitralError",
    "WeightsError",
    "attention_maps",
    "attention_weights",
    "build",
    "describe",
    "keep_freed_memory",
    "model_config",
]

_HOMES = {
    "Config": "vitral.config",
    "ConfigError": "vitral.errors",
    "DataError": "vitral.errors",
    "Features": "vitral.model",
    "Resnet": "vitral.model",
    "ServeError": "vitral.errors",
    "Vit": "vitral.model",
    "VitralError": "vitral.errors",
    "WeightsError": "vitral.errors",
    "attention_maps": "vitral.model",
    "attention_weights": "vitral.model",
    "build": "vitral.model",
    "describe": "vitral.explain.describe",
    "keep_freed_memory": "vitral.model.allocator",
    "model_config": "vitral.model",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
