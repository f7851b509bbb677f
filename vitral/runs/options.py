"""The keywords of `vitral.train`, typed, so that editors complete them.

They are the fields of a recipe, the ends of some of their paths (`lr` for `optimizer.lr`), and what belongs to the run
alone. Every other setting is given by its path: `settings={"mixer.heads": 8}`.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypedDict

from vitral.core.config import Config
from vitral.data.transforms.views import Augmentation
from vitral.models.registry import SizeLike
from vitral.recipes.recipe import Checkpoints, Images
from vitral.runs.callbacks.events import RunCallback, TrackerLike
from vitral.training.ema import BaseAverage
from vitral.training.finetune import BaseFinetune
from vitral.training.optimizers import BaseOptimizer
from vitral.training.precision import BasePrecision
from vitral.training.schedules import BaseSchedule
from vitral.weights.reader import ReadOptions


class TrainOptions(TypedDict, total=False):
    """Keywords of `vitral.train`; a kind is given by its name or as an object."""

    # fields of the recipe
    weights: str | Path
    weights_options: ReadOptions
    finetune: BaseFinetune | str
    images: Images
    task: Config | str
    length: Config | str
    batch_size: int
    microbatches: int
    optimizer: BaseOptimizer | str
    schedule: BaseSchedule | str
    clip: float | Literal["none"]
    average: BaseAverage | str
    precision: BasePrecision | str
    distributed: Config | str
    eval_every: float
    early_stopping: Config | str
    checkpoints: Checkpoints
    seed: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    workers: int | Literal["auto"]
    threads: int | Literal["auto"]
    compile: bool
    # ends of paths
    arch: str
    weights_key: str
    allow_pickle: bool
    epochs: float
    steps: int
    lr: float
    weight_decay: float
    image_size: SizeLike
    drop_path_rate: float
    crop: Config | str
    augment: Sequence[Augmentation | str]
    lenient: bool
    max_pixels: int
    root: str | Path
    hold_out: float
    # of the run alone
    settings: Mapping[str, Any]
    time_limit: str
    trust: bool
    callbacks: Sequence[RunCallback]
    tracker: TrackerLike


RUN_OPTIONS = ("settings", "time_limit", "trust", "callbacks", "tracker")  # not part of the recipe
