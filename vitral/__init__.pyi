# The public names: `vitral/__init__.py` imports each from its module when it is first used.

from typing import TYPE_CHECKING

if TYPE_CHECKING:  # so that mypy, which reads this first, does not analyze the modules in the order of this list
    from vitral.core.config import Config as Config
    from vitral.core.custom import trusted as trusted
    from vitral.core.errors import ConfigError as ConfigError
    from vitral.core.errors import DataError as DataError
    from vitral.core.errors import VitralError as VitralError
    from vitral.core.errors import WeightsError as WeightsError
    from vitral.core.files import allow_outside as allow_outside
    from vitral.core.machine import keep_freed_memory as keep_freed_memory
    from vitral.core.manifest import file_policy as file_policy
    from vitral.core.manifest import sign as sign
    from vitral.core.signature import create_key as create_key
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
    from vitral.runs.merge import merge as merge
    from vitral.runs.options import TrainOptions as TrainOptions
    from vitral.runs.preflight import check as check
    from vitral.runs.sweeps.search import GridSearch as GridSearch
    from vitral.runs.sweeps.search import RandomSearch as RandomSearch
    from vitral.runs.sweeps.search import Range as Range
    from vitral.runs.sweeps.sweep import Sweep as Sweep
    from vitral.runs.sweeps.sweep import sweep as sweep
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
    from vitral.weights.hub import push_to_hub as push_to_hub
    from vitral.weights.load import load as load
    from vitral.weights.pretrained import list_pretrained as list_pretrained
    from vitral.weights.save import save as save

__version__: str
__all__: list[str]
