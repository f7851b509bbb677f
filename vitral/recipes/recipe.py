"""Recipe: all settings of a run as one frozen value, enough to repeat it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, Self

from pydantic import Field, JsonValue, model_validator

from vitral.core import formats
from vitral.core.config import Config, OpenUnion, Size, override
from vitral.core.documents import read_document, to_yaml
from vitral.core.errors import ConfigError
from vitral.core.formats import upgrade_json
from vitral.data.decoding.header import MAX_PIXELS, Decoding, JpegScale
from vitral.data.loading.loader import ImagePipeline
from vitral.data.loading.sampler import Order, SamplingPlan, Shuffled
from vitral.data.loading.shared_memory import CACHE_BYTES
from vitral.data.samples import StratifiedSplit
from vitral.data.transforms.augment import Augment
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, RandomCrop, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, Normalize, Preprocessing
from vitral.data.transforms.views import OneView, ViewsConfig
from vitral.models.base import nearest_multiple
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify, NoPatchDrop
from vitral.training.clip import PerParameterClip
from vitral.training.distributed.strategy import Ddp, DistributedConfig
from vitral.training.ema import AverageConfig, NoAverage
from vitral.training.finetune import FinetuneConfig, FullFinetune
from vitral.training.optimizers import AdamW, ConstantDecay, OptimizerConfig, ScheduleFreeAdamW
from vitral.training.precision import Auto, PrecisionConfig
from vitral.training.schedules import Constant, Cosine, ScheduleConfig
from vitral.training.time_limit import FIRST_STEPS, PlanChange
from vitral.weights.reader import ReadOptions

ModelConfig = Annotated[Vit | Resnet, OpenUnion()]
TrainCrop = Annotated[RandomResizedCrop | RandomCrop | Resize | CenterCrop, OpenUnion()]


class DataConfig(Config):
    """The dataset, its split, and the order of its images."""

    path: str = ""  # of the data, as `vitral check` takes it
    root: str = ""  # folder with the files of a named dataset
    split: StratifiedSplit = StratifiedSplit()  # of datasets that have training images only
    hold_out: float = Field(default=0.0, ge=0, lt=1)  # of the training images, for validation if a dataset has no val
    fraction: float = Field(default=1.0, gt=0, le=1)  # of the training images of every class
    order: Order = Shuffled()
    options: Mapping[str, JsonValue] = Field(default_factory=dict)  # fields of a user's dataset class
    cache_bytes: int = Field(default=CACHE_BYTES, ge=0)  # for decoded images, per machine


class SizeStage(NamedTuple):
    """Steps from `first` on are trained with images of this size."""

    first: int
    image_size: Size


class FixedSize(Config):
    """Train with images of the model's size."""

    kind: Literal["fixed"] = "fixed"

    def stages(self, image_size: Size, token: Size, steps: int) -> list[SizeStage]:
        """The sizes of a run, in order."""
        return [SizeStage(0, image_size)]


class ProgressiveSize(Config):
    """Train with small images first, and with larger ones in stages of equal length (arXiv 2104.00298).

    The model resamples its positions to each size. Sizes are multiples of its patches.
    """

    kind: Literal["progressive"] = "progressive"
    start: float = Field(default=0.5, gt=0, le=1)  # of the model's side
    until: float = Field(default=0.75, gt=0, le=1)  # fraction of the run after which images have the full size
    smaller_stages: int = Field(default=3, ge=1)  # at most: sizes that round to the same are one stage

    def stages(self, image_size: Size, token: Size, steps: int) -> list[SizeStage]:
        """The sizes of a run, in order; the last one is that of the model."""
        found: dict[Size, int] = {}
        for number in range(self.smaller_stages + 1):
            done = number / self.smaller_stages
            side = self.start + (1 - self.start) * done
            size = (
                nearest_multiple(Size(*(round(side * full) for full in image_size)), token) if done < 1 else image_size
            )
            found.setdefault(size, round(self.until * done * steps))
        return [SizeStage(first, size) for size, first in found.items()]


SizeConfig = Annotated[FixedSize | ProgressiveSize, OpenUnion()]


class Images(Config):
    """Preprocessing: random crops and augmentation in training, a fixed crop otherwise."""

    crop: TrainCrop = RandomResizedCrop()
    augment: tuple[Augment, ...] = ()
    views: ViewsConfig = OneView()  # of a training image; several have crops and augmentations of their own
    size: SizeConfig = FixedSize()  # of training images over the run
    eval_crop: EvalCropConfig = Resize()
    normalize: Normalize = CENTERED
    external: bool = False  # the dataset gives float tensors, which are used as they are
    lenient: bool = False  # use what decodes of damaged images, and name them
    max_pixels: int = Field(default=MAX_PIXELS, ge=1)  # of an image
    jpeg_scale: JpegScale = "triple"  # at which photos are decoded before they are resized


class Epochs(Config):
    """A number of epochs."""

    kind: Literal["epochs"] = "epochs"
    epochs: float = Field(default=100, gt=0)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run, at least one."""
        return max(1, round(self.epochs * plan.steps_per_epoch))


class Steps(Config):
    """A number of steps, whatever the size of the dataset: as the paper fine-tunes."""

    kind: Literal["steps"] = "steps"
    steps: int = Field(default=20_000, ge=1)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run."""
        return self.steps


class PlannedSteps(Config):
    """The steps that a run with a time limit took, to repeat it: its plan with all changes."""

    kind: Literal["planned"] = "planned"
    changes: tuple[PlanChange, ...] = Field(default=(PlanChange(step=0, steps=1),), min_length=1)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run."""
        return self.changes[-1].steps


class TimeLimit(Config):
    """As many steps as fit into a time, planned while they are taken and recorded in the run."""

    kind: Literal["time"] = "time"
    seconds: float = Field(default=600.0, gt=0)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps that are planned before any is timed."""
        return FIRST_STEPS


class ImagesSeen(Config):
    """A number of images in total, repetitions included, within limits on the epochs."""

    kind: Literal["images_seen"] = "images_seen"
    images: int = Field(default=10_000, ge=1)
    min_epochs: float = Field(default=5, gt=0)
    max_epochs: float = Field(default=50, gt=0)

    @model_validator(mode="after")
    def epochs_rise(self) -> Self:
        if self.min_epochs > self.max_epochs:
            message = f"{self.min_epochs:g} is more than max_epochs={self.max_epochs:g}"
            hint = f"use at most {self.max_epochs:g}"
            raise ConfigError(message, code="config.conflict", where="min_epochs", hint=hint)
        return self

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run, at least one."""
        epochs = min(max(self.images / len(plan.labels), self.min_epochs), self.max_epochs)
        return Epochs(epochs=epochs).total_steps(plan)


class NoEarlyStopping(Config):
    """Train all steps."""

    kind: Literal["none"] = "none"

    def should_stop(self, since_best: int) -> bool:
        """Whether to stop, `since_best` evaluations after the best."""
        return False


class Patience(Config):
    """Stop once a number of validations in a row were no better than the best."""

    kind: Literal["patience"] = "patience"
    evaluations: int = Field(default=10, ge=1)

    def should_stop(self, since_best: int) -> bool:
        """Whether to stop, `since_best` evaluations after the best."""
        return since_best >= self.evaluations


class Checkpoints(Config):
    """How often checkpoints are written, and how many are kept besides that of the best evaluation."""

    every_seconds: float = Field(default=60.0, ge=0)  # between two checkpoints
    keep: int = Field(default=2, ge=1)


LengthConfig = Annotated[Epochs | Steps | ImagesSeen | TimeLimit | PlannedSteps, OpenUnion()]
EarlyStoppingConfig = Annotated[NoEarlyStopping | Patience, OpenUnion()]


class Recipe(Config):
    """All settings of a run. The defaults are the paper's training of ViT-B/16 on ImageNet (Table 3)."""

    format: Literal[5] = 5  # of recipe.json; core/formats.py reads the older ones
    name: str = "custom"
    data: DataConfig = DataConfig()
    model: ModelConfig = Vit()
    weights: str = ""  # to start from, anything that vitral.load takes; random weights if empty
    weights_options: ReadOptions = ReadOptions()  # if they are a checkpoint of another library
    finetune: FinetuneConfig = FullFinetune()
    images: Images = Images()
    task: TaskConfig = Classify()
    length: LengthConfig = Epochs(epochs=300)
    batch_size: int = Field(default=4096, ge=1)  # of all processes together
    microbatches: int = Field(default=1, ge=1)  # per step and process; more need less memory
    optimizer: OptimizerConfig = AdamW(lr=3e-3, weight_decay=0.3)
    schedule: ScheduleConfig = Cosine(warmup=10_000)
    clip: Annotated[float, Field(gt=0)] | Literal["none"] | PerParameterClip = 1.0  # maximum norm of the gradient
    average: AverageConfig = NoAverage()
    precision: PrecisionConfig = Auto()
    distributed: DistributedConfig = Ddp()
    eval_every: float = Field(default=1.0, gt=0)  # epochs, and at the end
    early_stopping: EarlyStoppingConfig = NoEarlyStopping()
    checkpoints: Checkpoints = Checkpoints()
    seed: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that read images; no effect on results
    threads: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"  # of the CPU, per process; recorded by a run
    compile: bool = False  # train with torch.compile: the first steps are slow, later ones faster

    @model_validator(mode="after")
    def optimizer_has_lr(self) -> Self:
        if not hasattr(self.optimizer, "lr"):
            message, hint = f"{self.optimizer.kind} has no field lr", "declare its peak learning rate: lr: float = 1e-3"
            raise ConfigError(message, code="config.wrong_class", where="optimizer", hint=hint)
        return self

    @model_validator(mode="after")
    def decay_can_change(self) -> Self:
        schedule = getattr(self.optimizer, "decay_schedule", ConstantDecay())  # a user's own class may have none
        if not isinstance(schedule, ConstantDecay) and not self.optimizer.weight_decay:
            message, hint = "there is no weight decay that could change", "set optimizer.weight_decay=0.04"
            raise ConfigError(message, code="config.conflict", where="optimizer.decay_schedule", hint=hint)
        return self

    @model_validator(mode="after")
    def schedule_free_is_left_alone(self) -> Self:
        if not isinstance(self.optimizer, ScheduleFreeAdamW):
            return self
        if not isinstance(self.schedule, Constant):
            message = f"{self.optimizer.kind} needs a constant learning rate, but the schedule is {self.schedule.kind}"
            hint = "set schedule=constant, with schedule.warmup as before"
            raise ConfigError(message, code="config.conflict", where="schedule", hint=hint)
        if not isinstance(self.average, NoAverage):
            message = f"{self.optimizer.kind} averages the weights itself, but average is {self.average.kind}"
            raise ConfigError(message, code="config.conflict", where="average", hint="set average=none")
        return self

    @model_validator(mode="after")
    def scaling_fits_channels(self) -> Self:
        if len(self.images.normalize.mean) not in {1, self.model.channels}:
            message = f"has {len(self.images.normalize.mean)} means for the {self.model.channels} channels of the model"
            hint = "give one, or one for each channel"
            raise ConfigError(message, code="config.conflict", where="images.normalize", hint=hint)
        return self

    @model_validator(mode="after")
    def task_fits_model(self) -> Self:
        try:
            self.task.check(self.model)
        except ConfigError as error:
            raise error.within("task") from None
        return self

    @model_validator(mode="after")
    def task_has_its_views(self) -> Self:
        needed, given = self.task.views, self.images.views.count()
        message, hint = "", "set images.views=one"
        if needed > given:
            message = f"the task {self.task.kind} compares {needed} views of an image, and there is {given}"
            hint = "set images.views=two or multi_crop"
        elif given > 1 and needed == 1:
            message = f"the task {self.task.kind} takes one view of an image, and there are {given}"
        elif given > 1 and self.images.external:
            message = "the dataset gives tensors, of which no views are made"
            hint = "let it return PIL images"
        if message:
            raise ConfigError(message, code="config.conflict", where="images.views", hint=hint)
        return self

    @model_validator(mode="after")
    def loss_can_be_split(self) -> Self:
        if self.microbatches > 1 and (reason := self.task.batch_dependence()):
            raise needs_whole_batch(self.task.kind, reason)
        return self

    @model_validator(mode="after")
    def size_can_change(self) -> Self:
        if isinstance(self.images.size, FixedSize):
            return self
        reason = ""
        if isinstance(self.model, Vit) and not self.model.any_size:
            reason = "the model takes images of one size"
        elif self.images.external:
            reason = "the dataset gives tensors of one size"
        elif self.task.trains != "classify":
            reason = f"the task {self.task.kind} needs images of one size"
        elif isinstance(self.length, TimeLimit):
            reason = "the number of steps is not known with a time limit"
        if reason:
            message, hint = f"images cannot grow during training: {reason}", "set images.size=fixed"
            raise ConfigError(message, code="config.conflict", where="images.size", hint=hint)
        return self

    @model_validator(mode="after")
    def tokens_can_be_compiled(self) -> Self:
        if self.compile and isinstance(self.task, Classify) and not isinstance(self.task.patch_drop, NoPatchDrop):
            message = "the number of patches changes from step to step, and each number would be compiled again"
            hint = "set compile=false, or task.patch_drop=none"
            raise ConfigError(message, code="config.conflict", where="compile", hint=hint)
        return self

    def to_yaml(self) -> str:
        """Every field as YAML, which `train --recipe` takes."""
        return to_yaml(self.model_dump(mode="json"))

    def decoding(self) -> Decoding:
        """How training and evaluation decode images."""
        images = self.images
        return Decoding(
            channels=self.model.channels,
            pixel_limit=images.max_pixels,
            lenient=images.lenient,
            jpeg_scale=images.jpeg_scale,
        )

    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the trained model, in which damaged images are errors."""
        return Preprocessing(
            image_size=self.model.image_size,
            decoding=self.decoding().model_copy(update={"lenient": False}),
            crop=self.images.eval_crop,
            normalize=self.images.normalize,
            external=self.images.external,
        )

    def train_pipeline(self, image_size: Size | None = None) -> ImagePipeline:
        """The image pipeline of training, at the model's image size or another one."""
        size = image_size or self.model.image_size
        if views := self.images.views.plan(size):
            return ImagePipeline(views[0].image_size, self.decoding(), views[0].crop, views[0].augment, views)
        return ImagePipeline(size, self.decoding(), self.images.crop, self.images.augment)

    def eval_pipeline(self) -> ImagePipeline:
        """The image pipeline of evaluation. A task of several views is evaluated on views as in training."""
        if self.images.views.count() > 1:
            return self.train_pipeline()
        return ImagePipeline(self.model.image_size, self.decoding(), self.images.eval_crop)

    def with_classes(self, classes: int) -> "Recipe":
        """The recipe with a head for `classes` classes, or without a head if the task needs none."""
        head = f"model.head.num_classes={classes}" if self.task.trains == "classify" else "model.head=none"
        return override(self, [head])


def needs_whole_batch(task: str, reason: str) -> ConfigError:
    """The error for a task whose batches cannot be split into microbatches."""
    message = f"the task {task} needs the whole batch at once: {reason}"
    hint = "set microbatches=1, with a smaller batch_size, model or image size, or more processes"
    return ConfigError(message, code="config.needs_whole_batch", where="microbatches", hint=hint)


def load_recipe(path: Path) -> Recipe:
    """The recipe in a JSON or YAML file, such as the `recipe.json` of a run; missing fields have their default."""
    data = read_document(path)
    try:
        return read_recipe(json.dumps(data if "format" in data else {"format": Recipe().format, **data}).encode())
    except ConfigError as error:
        where = f"{path}: {error.where}" if error.where else str(path)
        raise ConfigError(error.message, code=error.code, where=where, hint=error.hint) from None


def read_recipe(text: bytes) -> Recipe:
    """The recipe in a `recipe.json` of any format."""
    return Recipe.from_json(upgrade_json(text, formats.RECIPE, Recipe().format))
