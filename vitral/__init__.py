"""Vitral: the Vision Transformer of "An Image is Worth 16x16 Words" (arXiv 2010.11929), whole.

The names below are imported when they are first used, so that `import vitral` does not wait for torch.
"""

from vitral.core.import_path import remove_working_directory

remove_working_directory()  # before any import that a file in it could replace

# isort: split
from importlib import import_module  # noqa: E402
from typing import TYPE_CHECKING  # noqa: E402

from vitral.core.imports import pause_gc  # noqa: E402

if TYPE_CHECKING:
    from vitral.core.config import Config as Config
    from vitral.core.custom import trusted as trusted
    from vitral.core.errors import ConfigError as ConfigError
    from vitral.core.errors import DataError as DataError
    from vitral.core.errors import VitralError as VitralError
    from vitral.core.errors import WeightsError as WeightsError
    from vitral.core.machine import keep_freed_memory as keep_freed_memory
    from vitral.data.datasets.pack import pack as pack
    from vitral.data.datasets.source import list_datasets as list_datasets
    from vitral.data.datasets.source import open_data as open_data
    from vitral.data.datasets.torch_dataset import BaseDataset as BaseDataset
    from vitral.data.decoding.header import Decoding as Decoding
    from vitral.data.decoding.pixels import Pixels as Pixels
    from vitral.data.loading.loader import ImagePipeline as ImagePipeline
    from vitral.data.loading.loader import Loader as Loader
    from vitral.data.samples import Split as Split
    from vitral.data.transforms.preprocessing import Preprocessing as Preprocessing
    from vitral.explanation.explain import explain as explain
    from vitral.explanation.walkthrough.describe import describe as describe
    from vitral.inference.predictor import Predictor as Predictor
    from vitral.inference.predictor import predict as predict
    from vitral.inference.writers import Prediction as Prediction
    from vitral.models import AdditivePosition as AdditivePosition
    from vitral.models import BaseInit as BaseInit
    from vitral.models import BaseMixer as BaseMixer
    from vitral.models import BasePosition as BasePosition
    from vitral.models import BuildContext as BuildContext
    from vitral.models import Features as Features
    from vitral.models import Layout as Layout
    from vitral.models import Model as Model
    from vitral.models import Position as Position
    from vitral.models import Resnet as Resnet
    from vitral.models import Vit as Vit
    from vitral.models import attention_maps as attention_maps
    from vitral.models import attention_weights as attention_weights
    from vitral.models import model_config as model_config
    from vitral.models.registry import list_models as list_models
    from vitral.recipes.recipe import Recipe as Recipe
    from vitral.recipes.registry import list_recipes as list_recipes
    from vitral.runs.callbacks.events import Evaluated as Evaluated
    from vitral.runs.callbacks.events import Finished as Finished
    from vitral.runs.callbacks.events import Logged as Logged
    from vitral.runs.callbacks.events import RunEvent as RunEvent
    from vitral.runs.callbacks.events import Saved as Saved
    from vitral.runs.callbacks.events import Started as Started
    from vitral.runs.evaluate import evaluate as evaluate
    from vitral.runs.export import export as export
    from vitral.runs.options import TrainOptions as TrainOptions
    from vitral.runs.preflight import check as check
    from vitral.runs.train import Run as Run
    from vitral.runs.train import resume as resume
    from vitral.runs.train import train as train
    from vitral.tasks.task import BaseTask as BaseTask
    from vitral.tasks.task import Outcome as Outcome
    from vitral.tasks.task import Task as Task
    from vitral.training.optimizers import BaseOptimizer as BaseOptimizer
    from vitral.training.optimizers import param_groups as param_groups
    from vitral.weights.adapt import adapt as adapt
    from vitral.weights.bundle import Bundle as Bundle
    from vitral.weights.convert import convert as convert
    from vitral.weights.create import create_model as create_model
    from vitral.weights.load import load as load
    from vitral.weights.pretrained import list_pretrained as list_pretrained
    from vitral.weights.save import save as save

__version__ = "0.1.0"

_HOMES = {
    "AdditivePosition": "vitral.models",
    "BaseDataset": "vitral.data.datasets.torch_dataset",
    "BaseInit": "vitral.models",
    "BaseMixer": "vitral.models",
    "BaseOptimizer": "vitral.training.optimizers",
    "BasePosition": "vitral.models",
    "BaseTask": "vitral.tasks.task",
    "BuildContext": "vitral.models",
    "Bundle": "vitral.weights.bundle",
    "Config": "vitral.core.config",
    "ConfigError": "vitral.core.errors",
    "DataError": "vitral.core.errors",
    "Decoding": "vitral.data.decoding.header",
    "Evaluated": "vitral.runs.callbacks.events",
    "Features": "vitral.models",
    "Finished": "vitral.runs.callbacks.events",
    "ImagePipeline": "vitral.data.loading.loader",
    "Layout": "vitral.models",
    "Loader": "vitral.data.loading.loader",
    "Logged": "vitral.runs.callbacks.events",
    "Model": "vitral.models",
    "Outcome": "vitral.tasks.task",
    "Pixels": "vitral.data.decoding.pixels",
    "Position": "vitral.models",
    "Prediction": "vitral.inference.writers",
    "Predictor": "vitral.inference.predictor",
    "Preprocessing": "vitral.data.transforms.preprocessing",
    "Recipe": "vitral.recipes.recipe",
    "Resnet": "vitral.models",
    "Run": "vitral.runs.train",
    "RunEvent": "vitral.runs.callbacks.events",
    "Saved": "vitral.runs.callbacks.events",
    "Split": "vitral.data.samples",
    "Started": "vitral.runs.callbacks.events",
    "Task": "vitral.tasks.task",
    "TrainOptions": "vitral.runs.options",
    "Vit": "vitral.models",
    "VitralError": "vitral.core.errors",
    "WeightsError": "vitral.core.errors",
    "adapt": "vitral.weights.adapt",
    "attention_maps": "vitral.models",
    "attention_weights": "vitral.models",
    "check": "vitral.runs.preflight",
    "convert": "vitral.weights.convert",
    "create_model": "vitral.weights.create",
    "describe": "vitral.explanation.walkthrough.describe",
    "evaluate": "vitral.runs.evaluate",
    "explain": "vitral.explanation.explain",
    "export": "vitral.runs.export",
    "keep_freed_memory": "vitral.core.machine",
    "list_datasets": "vitral.data.datasets.source",
    "list_models": "vitral.models.registry",
    "list_pretrained": "vitral.weights.pretrained",
    "list_recipes": "vitral.recipes.registry",
    "load": "vitral.weights.load",
    "model_config": "vitral.models",
    "open_data": "vitral.data.datasets.source",
    "pack": "vitral.data.datasets.pack",
    "param_groups": "vitral.training.optimizers",
    "predict": "vitral.inference.predictor",
    "resume": "vitral.runs.train",
    "save": "vitral.weights.save",
    "train": "vitral.runs.train",
    "trusted": "vitral.core.custom",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'vitral' has no attribute {name!r}")
    with pause_gc():
        value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value  # the next use finds it without coming here
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
