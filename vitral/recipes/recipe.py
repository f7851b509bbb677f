"""Recipe: a whole run as one frozen value, all that is needed to do it again."""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from vitral.core import formats
from vitral.core.config import Config, override
from vitral.core.errors import ConfigError
from vitral.core.formats import upgrade_json
from vitral.data.decoding.header import Decoding
from vitral.data.loading.loader import ImagePipeline
from vitral.data.loading.sampler import Order, SamplingPlan, Shuffled
from vitral.data.loading.shared_memory import CACHE_BYTES
from vitral.data.samples import StratifiedSplit
from vitral.data.transforms.augment import Augment
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, RandomResizedCrop, Resize
from vitral.data.transforms.preprocessing import CENTERED, Normalize, Preprocessing
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.training.distributed.strategy import Ddp, DistributedConfig
from vitral.training.ema import AverageConfig, NoAverage
from vitral.training.finetune import FinetuneConfig, FullFinetune
from vitral.training.optimizers import AdamW, OptimizerConfig
from vitral.training.precision import Auto, PrecisionConfig
from vitral.training.schedules import Cosine, ScheduleConfig

ModelConfig = Annotated[Vit | Resnet, Field(discriminator="kind")]
TrainCrop = Annotated[RandomResizedCrop | Resize | CenterCrop, Field(discriminator="kind")]


class DataConfig(Config):
    """Which images, and in what order they are shown."""

    path: str = ""  # as `vitral check` takes it
    root: str = ""  # where the files of a set known by name are
    split: StratifiedSplit = StratifiedSplit()  # for sets that have training images only
    fraction: float = Field(default=1.0, gt=0, le=1)  # of the training images of every class
    order: Order = Shuffled()
    cache_bytes: int = Field(default=CACHE_BYTES, ge=0)  # of decoded images on a machine, shared by its processes


class Images(Config):
    """How images are seen: in training by chance, in every other use always alike."""

    crop: TrainCrop = RandomResizedCrop()
    augment: tuple[Augment, ...] = ()
    eval_crop: EvalCropConfig = Resize()
    normalize: Normalize = CENTERED


class Epochs(Config):
    """So many times over the training images."""

    kind: Literal["epochs"] = "epochs"
    epochs: float = Field(default=100, gt=0)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run, at least one."""
        return max(1, round(self.epochs * plan.steps_per_epoch))


class Steps(Config):
    """So many steps, however many images there are: the paper's way for fine-tuning."""

    kind: Literal["steps"] = "steps"
    steps: int = Field(default=20_000, ge=1)

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run."""
        return self.steps


class ImagesSeen(Config):
    """So many images, one as often as another, but within these epochs: few images often, many not too seldom."""

    kind: Literal["images_seen"] = "images_seen"
    images: int = Field(default=10_000, ge=1)
    min_epochs: float = Field(default=5, gt=0)  # epochs
    max_epochs: float = Field(default=50, gt=0)  # epochs

    @model_validator(mode="after")
    def epochs_rise(self) -> Self:
        if self.min_epochs > self.max_epochs:
            message = f"the fewest epochs, {self.min_epochs:g}, are more than the most, {self.max_epochs:g}"
            raise ConfigError(message, code="config.conflict", where="fewest", hint=f"use at most {self.max_epochs:g}")
        return self

    def total_steps(self, plan: SamplingPlan) -> int:
        """The steps of the whole run, at least one."""
        epochs = min(max(self.images / len(plan.labels), self.min_epochs), self.max_epochs)
        return Epochs(epochs=epochs).total_steps(plan)


class NoEarlyStopping(Config):
    """All steps are taken."""

    kind: Literal["none"] = "none"

    def should_stop(self, since_best: int) -> bool:
        """Whether to stop, so many evaluations after the best."""
        return False


class Patience(Config):
    """Stop early, once so many evaluations in a row were no better than the best on the validation images."""

    kind: Literal["patience"] = "patience"
    evaluations: int = Field(default=10, ge=1)

    def should_stop(self, since_best: int) -> bool:
        """Whether to stop, so many evaluations after the best."""
        return since_best >= self.evaluations


class Checkpoints(Config):
    """When a checkpoint is written, and how many stay; that of the best evaluation always does."""

    every_seconds: float = Field(default=60.0, ge=0)  # between two of them
    keep: int = Field(default=2, ge=1)


LengthConfig = Annotated[Epochs | Steps | ImagesSeen, Field(discriminator="kind")]
EarlyStoppingConfig = Annotated[NoEarlyStopping | Patience, Field(discriminator="kind")]


class Recipe(Config):
    """A run. As it stands it is the paper's training on ImageNet (Table 3), of ViT-B/16."""

    format: Literal[2] = 2  # of recipe.json; core/formats.py reads format 1
    name: str = "custom"
    data: DataConfig = DataConfig()
    model: ModelConfig = Vit()
    weights: str = ""  # to start from, whatever vitral.load takes; fresh weights if it is empty
    finetune: FinetuneConfig = FullFinetune()
    images: Images = Images()
    task: TaskConfig = Classify()
    length: LengthConfig = Epochs(epochs=300)
    batch_size: int = Field(default=4096, ge=1)  # of all processes together
    microbatches: int = Field(default=1, ge=1)  # in which a process takes its part of a batch; more need less memory
    optimizer: OptimizerConfig = AdamW(lr=3e-3, weight_decay=0.3)
    schedule: ScheduleConfig = Cosine(warmup=10_000)
    clip: Annotated[float, Field(gt=0)] | Literal["none"] = 1.0  # maximum norm of the gradient
    average: AverageConfig = NoAverage()
    precision: PrecisionConfig = Auto()
    distributed: DistributedConfig = Ddp()
    eval_every: float = Field(default=1.0, gt=0)  # every so many epochs, and at the end
    early_stopping: EarlyStoppingConfig = NoEarlyStopping()
    checkpoints: Checkpoints = Checkpoints()
    seed: int = Field(default=0, ge=0)
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that read images; they change no bit
    compile: bool = False  # train with torch.compile: the first steps are slow, later ones faster

    @model_validator(mode="after")
    def scaling_fits_channels(self) -> Self:
        if len(self.images.normalize.mean) not in {1, self.model.channels}:
            message = f"has {len(self.images.normalize.mean)} means for the {self.model.channels} channels of the model"
            hint = "give one, or one for each channel"
            raise ConfigError(message, code="config.conflict", where="images.normalize", hint=hint)
        return self

    def preprocessing(self) -> Preprocessing:
        """What the trained model needs done to an image."""
        image, decoding = self.model.image_size, Decoding(channels=self.model.channels)
        return Preprocessing(
            image_size=image, decoding=decoding, crop=self.images.eval_crop, normalize=self.images.normalize
        )

    def train_pipeline(self) -> ImagePipeline:
        """How training sees the files."""
        return ImagePipeline(
            self.model.image_size, Decoding(channels=self.model.channels), self.images.crop, self.images.augment
        )

    def eval_pipeline(self) -> ImagePipeline:
        """How evaluation sees them."""
        return ImagePipeline(self.model.image_size, Decoding(channels=self.model.channels), self.images.eval_crop)

    def with_classes(self, classes: int) -> "Recipe":
        """The recipe with a head for so many classes, or with none where the task needs none."""
        head = f"model.head.num_classes={classes}" if isinstance(self.task, Classify) else "model.head=none"
        return override(self, [head])


def read_recipe(text: bytes) -> Recipe:
    """The recipe that `recipe.json` of any format holds."""
    return Recipe.from_json(upgrade_json(text, formats.RECIPE, Recipe().format))
