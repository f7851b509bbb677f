"""Recipe: a whole run as one frozen value, all that is needed to do it again."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vitral.core.config import Config, override
from vitral.core.errors import ConfigError
from vitral.data.datasets.split import Stratified
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import Sight
from vitral.data.loading.sampler import Order, Plan, Shuffled
from vitral.data.transforms.augment import Augment
from vitral.data.transforms.crop import CentreCrop, InceptionCrop, PlainResize, StillView
from vitral.data.transforms.preprocessing import CENTRED, Preprocessing, Scaling
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.tasks.classify import Classify
from vitral.tasks.registry import TaskConfig
from vitral.training.distributed.strategy import Ddp, DistributedConfig
from vitral.training.ema import AverageConfig, NoAverage
from vitral.training.finetune import Everything, TuningConfig
from vitral.training.optimizers import AdamW, OptimiserConfig
from vitral.training.precision import Auto, PrecisionConfig
from vitral.training.schedules import Cosine, ScheduleConfig

ModelConfig = Annotated[Vit | Resnet, Field(discriminator="kind")]
TrainingView = Annotated[InceptionCrop | PlainResize | CentreCrop, Field(discriminator="kind")]


class DataConfig(Config):
    """Which images, and in what order they are shown."""

    where: str = ""  # as `vitral check` takes it
    root: str = ""  # where the files of a set known by name are
    split: Stratified = Stratified()  # for sets that have training images only
    share: float = Field(default=1.0, gt=0, le=1)  # of the training images of every class
    order: Order = Shuffled()


class Images(Config):
    """How images are seen: in training by chance, in every other use always alike."""

    view: TrainingView = InceptionCrop()
    augment: tuple[Augment, ...] = ()
    still: StillView = PlainResize()
    scaling: Scaling = CENTRED


class Epochs(Config):
    """So many times over the training images."""

    kind: Literal["epochs"] = "epochs"
    epochs: float = Field(default=100, gt=0)

    def total(self, plan: Plan) -> int:
        """The steps of the whole run, at least one."""
        return max(1, round(self.epochs * plan.epoch_steps))


class Steps(Config):
    """So many steps, however many images there are: the paper's way for fine-tuning."""

    kind: Literal["steps"] = "steps"
    steps: int = Field(default=20_000, ge=1)

    def total(self, plan: Plan) -> int:
        """The steps of the whole run."""
        return self.steps


class Shown(Config):
    """So many images, one as often as another, but within these epochs: few images often, many not too seldom."""

    kind: Literal["shown"] = "shown"
    images: int = Field(default=10_000, ge=1)
    fewest: float = Field(default=5, gt=0)  # epochs
    most: float = Field(default=50, gt=0)  # epochs

    @model_validator(mode="after")
    def epochs_rise(self) -> Self:
        if self.fewest > self.most:
            what = f"the fewest epochs, {self.fewest:g}, are more than the most, {self.most:g}"
            raise ConfigError(what, code="config.conflict", where="fewest", remedy=f"use at most {self.most:g}")
        return self

    def total(self, plan: Plan) -> int:
        """The steps of the whole run, at least one."""
        epochs = min(max(self.images / len(plan.labels), self.fewest), self.most)
        return Epochs(epochs=epochs).total(plan)


class ToTheEnd(Config):
    """All steps are taken."""

    kind: Literal["end"] = "end"

    def enough(self, since_best: int) -> bool:
        """Whether to stop, so many evaluations after the best."""
        return False


class Patience(Config):
    """Stop early, once so many evaluations in a row were no better than the best on the validation images."""

    kind: Literal["patience"] = "patience"
    evaluations: int = Field(default=10, ge=1)

    def enough(self, since_best: int) -> bool:
        """Whether to stop, so many evaluations after the best."""
        return since_best >= self.evaluations


class Saving(Config):
    """When a checkpoint is written, and how many stay; that of the best evaluation always does."""

    seconds: float = Field(default=60.0, ge=0)  # between two of them
    keep: int = Field(default=2, ge=1)


Length = Annotated[Epochs | Steps | Shown, Field(discriminator="kind")]
Stopping = Annotated[ToTheEnd | Patience, Field(discriminator="kind")]


class Recipe(Config):
    """A run. As it stands it is the paper's training on ImageNet (Table 3), of ViT-B/16."""

    name: str = "custom"
    data: DataConfig = DataConfig()
    model: ModelConfig = Vit()
    weights: str = ""  # to start from, whatever vitral.load takes; fresh weights if it is empty
    tuning: TuningConfig = Everything()
    images: Images = Images()
    task: TaskConfig = Classify()
    length: Length = Epochs(epochs=300)
    batch: int = Field(default=4096, ge=1)  # of all processes together
    portions: int = Field(default=1, ge=1)  # in which a process takes its part of a batch; more need less memory
    optimiser: OptimiserConfig = AdamW(rate=3e-3, decay=0.3)
    schedule: ScheduleConfig = Cosine(warmup=10_000)
    clip: float = Field(default=1.0, gt=0)  # the longest gradient
    average: AverageConfig = NoAverage()
    precision: PrecisionConfig = Auto()
    distributed: DistributedConfig = Ddp()
    evaluate: float = Field(default=1.0, gt=0)  # every so many epochs, and at the end
    stopping: Stopping = ToTheEnd()
    saving: Saving = Saving()
    seed: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that read images; they change no bit

    @model_validator(mode="after")
    def scaling_fits_channels(self) -> Self:
        if len(self.images.scaling.mean) not in {1, self.model.channels}:
            what = f"has {len(self.images.scaling.mean)} means for the {self.model.channels} channels of the model"
            remedy = "give one, or one for each channel"
            raise ConfigError(what, code="config.conflict", where="images.scaling", remedy=remedy)
        return self

    def preprocessing(self) -> Preprocessing:
        """What the trained model needs done to an image."""
        image, decoding = self.model.image, Decoding(channels=self.model.channels)
        return Preprocessing(image=image, decoding=decoding, view=self.images.still, scaling=self.images.scaling)

    def sight(self) -> Sight:
        """How training sees the files."""
        return Sight(self.model.image, Decoding(channels=self.model.channels), self.images.view, self.images.augment)

    def still_sight(self) -> Sight:
        """How evaluation sees them."""
        return Sight(self.model.image, Decoding(channels=self.model.channels), self.images.still)

    def fitted(self, classes: int) -> "Recipe":
        """The recipe with a head for so many classes, or with none where the task needs none."""
        head = f"model.head.classes={classes}" if isinstance(self.task, Classify) else "model.head=none"
        return override(self, [head])
