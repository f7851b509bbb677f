"""Fine-tuning: which weights train when a run starts from pretrained ones, and low-rank adapters (LoRA).

B of N images, D width, K classes. Of an adapter: M outputs, D inputs, r rank, s scale.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

from vitral.core.config import Config, OpenUnion
from vitral.core.errors import ConfigError
from vitral.models.attention import QkvProjection, SelfAttention
from vitral.models.base import Model
from vitral.models.head import Classifier, LinearHead
from vitral.models.hooks import eval_mode
from vitral.models.mlp import FeedForward, GatedFeedForward
from vitral.models.resnet import Resnet
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks import TaskConfig
from vitral.tasks.classify import Classify
from vitral.tasks.task import Task
from vitral.training.loop import Microbatch

LoraTarget = Literal["qkv", "project", "mlp"]
PARAMETRIZED = ".parametrizations.weight."  # in state-dict names of torch


def add_low_rank(weight: Tensor, up: Tensor, down: Tensor, scale: float) -> Tensor:
    """W + s B A, of weight W (M, D), B (M, r) and A (r, D)."""
    return weight + scale * (up @ down)


class LoraAdapter(nn.Module):
    """The parametrization of a weight. B starts at zero, so the model starts unchanged, to the bit.

    A and B have the weight decay and the layer's learning rate of any linear layer.
    """

    def __init__(self, weight: Tensor, rank: int, scale: float) -> None:
        super().__init__()
        outputs, inputs = weight.shape
        self.scale = scale
        self.down = nn.Linear(inputs, rank, bias=False, device=weight.device)  # A
        self.up = nn.Linear(rank, outputs, bias=False, device=weight.device)  # B
        nn.init.zeros_(self.up.weight)

    def forward(self, weight: Tensor) -> Tensor:
        return add_low_rank(weight, self.up.weight, self.down.weight, self.scale)  # (M, D)


def add_adapters(blocks: nn.Module, parts: Collection[LoraTarget], rank: int, scale: float) -> None:
    """Add an adapter to each of these linear layers.

    As a parametrization, it applies wherever `weight` is read, whole or in slices. A step takes as long as one that
    trains W. Computing x Aᵀ Bᵀ beside x Wᵀ would take 0.77 (B/16, 4 images) to 1.0 (S/16, 16 images) of that on a core
    of an AMD EPYC, but all code that reads a weight would have to handle the adapter.
    """
    for linear in list(target_layers(blocks, parts)):  # a list: adapters are modules of the blocks, too
        register_parametrization(linear, "weight", LoraAdapter(linear.weight, rank, scale))


def target_layers(blocks: nn.Module, parts: Collection[LoraTarget]) -> Iterator[nn.Linear]:
    """The linear layers of these kinds, in the order of the blocks."""
    for module in blocks.modules():
        if isinstance(module, QkvProjection) and "qkv" in parts:
            yield module.qkv
        elif isinstance(module, SelfAttention) and isinstance(module.project, nn.Linear) and "project" in parts:
            yield module.project
        elif isinstance(module, FeedForward | GatedFeedForward) and "mlp" in parts:
            yield from (module.expand, module.contract)


@torch.no_grad()
def merge_adapters(tensors: Mapping[str, Tensor], scale: float) -> dict[str, Tensor]:
    """The state dict of the same model without adapters: each is merged into its weight."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        home, adapted, part = name.partition(PARAMETRIZED)
        if not adapted:
            found[name] = tensor
        elif part == "original":
            up, down = (tensors[f"{home}{PARAMETRIZED}0.{side}.weight"] for side in ("up", "down"))  # (M, r), (r, D)
            found[f"{home}.weight"] = add_low_rank(tensor, up, down, scale)
    return found


class TrainImages(NamedTuple):
    """The training images, for a method that needs their features before the first step."""

    batches: Callable[[], Iterable[Sequence[Microbatch]]]  # each image once, with the eval transform
    gather: Callable[[Tensor], Tensor]  # the rows of all processes, in the order of ranks
    is_main: bool  # whether this is the main process
    fit: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # features (N, D), labels (N,) to weight (K, D), bias (K,)


def extract_features(model: Model, images: TrainImages) -> tuple[Tensor, Tensor]:
    """The pooled features (N, D) of all training images and their labels (N,), on the CPU."""
    with eval_mode(model), torch.no_grad():
        found = [
            (model.forward_pooled(microbatch.images).float(), microbatch.labels)  # (B, D), (B,)
            for batch in images.batches()
            for microbatch in batch
        ]
    features, labels = (images.gather(torch.cat(rows)).cpu() for rows in zip(*found, strict=True))
    return features, labels


def fit_head(features: Tensor, labels: Tensor, images: TrainImages) -> tuple[Tensor, Tensor]:
    """Fit a head in the main process, for all processes."""
    weight, bias = images.fit(features, labels) if images.is_main else (features[:0], features[:0, 0])  # (K, D), (K,)
    return images.gather(weight), images.gather(bias)


class TuningStage(Config):
    """From step `first` on, the last `layers` train, with norm, pool and head; with `all` every weight does.

    With views, the tokens before those layers are computed once for so many views of each training image, the first of
    which is that of evaluation, and kept in memory. Without, images are augmented again in every epoch.
    """

    first: int = Field(default=0, ge=0)
    layers: Annotated[int, Field(ge=1)] | Literal["all"] = "all"
    views: int = Field(default=0, ge=0)


class StageSpan(NamedTuple):
    """A stage of a run, and its steps."""

    stage: TuningStage
    first: int
    end: int


def fit_linear_head(model: Model, images: TrainImages) -> str:
    """Fit the head of a model to its features, in all processes; returns a message."""
    assert isinstance(model.head, Classifier)
    features, labels = extract_features(model, images)  # (N, D), (N,)
    weight, bias = fit_head(features, labels, images)  # (K, D), (K,)
    accuracy = ((features @ weight.mT + bias).argmax(dim=1) == labels).double().mean().item()
    with torch.no_grad():
        model.head.linear.weight.copy_(weight)
        model.head.linear.bias.copy_(bias)
    return f"fitted the head to frozen features: training accuracy {accuracy:.1%} on {len(labels):,} images"


class BaseFinetune(Config):
    """A fine-tuning method; the defaults change nothing."""

    needs_weights: ClassVar[bool] = True  # whether it refuses random weights
    needs_train_images: ClassVar[bool] = False  # whether `prepare` reads all training images

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        """Refuse weights, models and tasks that the method does not support."""
        if self.needs_weights and not weights:
            message = "needs pretrained weights, but this run starts from random ones"
            hint = "pass --weights WEIGHTS, or set finetune=full"
            raise ConfigError(message, code="config.missing_value", where="finetune", hint=hint)

    def apply(self, task: Task) -> None:
        """Freeze weights and add adapters; called before the task is distributed, in new and resumed runs."""

    def prepare(self, task: Task, images: TrainImages) -> str:
        """Prepare the task once, before the first step of a run; returns a message, or an empty one."""
        return ""

    def spans(self, steps: int) -> list[StageSpan]:
        """The stages of a run of so many steps: at least one."""
        return [StageSpan(TuningStage(), 0, steps)]

    def begin_stage(self, task: Task, stage: TuningStage) -> None:
        """Choose the weights that train in a stage; called before the task is distributed."""

    def merge_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state dict of the model without what the method added, for a bundle."""
        return dict(tensors)


class FullFinetune(BaseFinetune):
    """All weights train, as in the paper."""

    needs_weights: ClassVar[bool] = False

    kind: Literal["full"] = "full"


class HeadOnly(BaseFinetune):
    """Only the head trains: a linear probe by gradient descent."""

    kind: Literal["head"] = "head"

    def apply(self, task: Task) -> None:
        freeze_all_but(task.model, [model_of(task).head])


class LastLayers(BaseFinetune):
    """The last blocks, norm, pool and head train; the stem and earlier blocks are frozen."""

    kind: Literal["last_layers"] = "last_layers"
    count: int = Field(default=2, ge=1)

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        check_layers(self.count, require_vit(model, "selects the layers").depth, "finetune.count")

    def apply(self, task: Task) -> None:
        model = model_of(task)
        assert isinstance(model, VisionTransformer)
        freeze_all_but(model, last_modules(model, self.count))


class LinearProbeThenFinetune(BaseFinetune):
    """Fit the head to frozen features, then fine-tune all weights (LP-FT, arXiv 2202.10054).

    With a random or zero head, the first gradients would distort the features.
    """

    needs_train_images: ClassVar[bool] = True

    kind: Literal["lp_ft"] = "lp_ft"

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        require_linear_head(model, task)

    def prepare(self, task: Task, images: TrainImages) -> str:
        return fit_linear_head(model_of(task), images)


class Staged(BaseFinetune):
    """Fit the head to frozen features, then train the last layers, then all, as far as the time suffices.

    The best weights on the validation images win, those of the fitted head among them, and every stage starts from the
    best before it. While the last layers train, the tokens before them are not computed again. `auto` plans the stages
    by the time of a forward pass; the run records them, so that `--resume` and `--recipe` have the same.
    """

    needs_train_images: ClassVar[bool] = True

    kind: Literal["staged"] = "staged"
    layers: int = Field(default=4, ge=1)  # that train in the first stage, or all there are
    seconds: float = Field(default=270.0, gt=0)  # of the whole run, or
    seconds_per_image: float = Field(default=0.6, ge=0)  # of the training images, if that is more
    stages: tuple[TuningStage, ...] | Literal["auto"] = "auto"

    @model_validator(mode="after")
    def stages_are_in_order(self) -> Self:
        firsts = [stage.first for stage in self.planned]
        if self.stages != "auto" and (not firsts or firsts[0] or firsts != sorted(set(firsts))):
            message, hint = (
                f"begin at steps {firsts}",
                "let the first begin at step 0, and each later than the one before",
            )
            raise ConfigError(message, code="config.conflict", where="stages", hint=hint)
        return self

    @property
    def planned(self) -> tuple[TuningStage, ...]:
        """The stages; before they are planned, one that trains everything."""
        return (TuningStage(),) if isinstance(self.stages, str) else self.stages

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        require_linear_head(model, task)
        depth = require_vit(model, "selects the layers").depth
        for stage in self.planned:
            check_layers(stage.layers, depth, "finetune.stages")

    def apply(self, task: Task) -> None:
        self._freeze(task, max(self.planned, key=trained_layers))

    def prepare(self, task: Task, images: TrainImages) -> str:
        return fit_linear_head(model_of(task), images)

    def spans(self, steps: int) -> list[StageSpan]:
        taken = [stage for stage in self.planned if stage.first < steps] or [self.planned[0]]
        ends = [*(stage.first for stage in taken[1:]), steps]
        return [StageSpan(stage, stage.first, end) for stage, end in zip(taken, ends, strict=True)]

    def begin_stage(self, task: Task, stage: TuningStage) -> None:
        model_of(task).requires_grad_(True)
        self._freeze(task, stage)

    def _freeze(self, task: Task, stage: TuningStage) -> None:
        if stage.layers != "all":
            model = model_of(task)
            assert isinstance(model, VisionTransformer)
            freeze_all_but(model, last_modules(model, stage.layers))


class Lora(BaseFinetune):
    """Low-rank adapters and the head train; all other weights are frozen (LoRA, arXiv 2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=10_000)
    alpha: float = Field(default=16.0, gt=0)  # the scale of an adapter is alpha / rank
    modules: tuple[LoraTarget, ...] = ("qkv", "project", "mlp")  # the linear layers of every block with an adapter

    @model_validator(mode="after")
    def check_modules(self) -> Self:
        if not self.modules:
            hint = "name qkv, project or mlp"
            raise ConfigError("no modules given", code="config.missing_value", where="modules", hint=hint)
        return self

    @property
    def scale(self) -> float:
        """The factor of B A."""
        return self.alpha / self.rank

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        blocks = require_vit(model, "adapts the linear layers").build_empty().blocks
        if not any(target_layers(blocks, self.modules)):
            message = f"the blocks of this model have no {' or '.join(self.modules)} to adapt"
            hint = "choose other modules, or set finetune=last_layers"
            raise ConfigError(message, code="config.unsupported", where="finetune.modules", hint=hint)

    def apply(self, task: Task) -> None:
        model = model_of(task)
        assert isinstance(model, VisionTransformer)
        freeze_all_but(model, [model.head])
        add_adapters(model.blocks, self.modules, self.rank, self.scale)

    def merge_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return merge_adapters(tensors, self.scale)


FinetuneConfig = Annotated[FullFinetune | HeadOnly | LastLayers | LinearProbeThenFinetune | Staged | Lora, OpenUnion()]


def last_modules(model: VisionTransformer, count: int) -> list[nn.Module]:
    """The last blocks, and all that comes after them."""
    return [*model.blocks[-count:], model.norm, model.pool, model.head]


def trained_layers(stage: TuningStage) -> float:
    """How many layers train in a stage; with `all` more than there are, since the stem does, too."""
    return inf if stage.layers == "all" else stage.layers


def freeze_all_but(model: nn.Module, trained: Iterable[nn.Module]) -> None:
    """Freeze every weight outside these modules."""
    kept = {weight for module in trained for weight in module.parameters()}
    for weight in model.parameters():
        if weight not in kept:
            weight.requires_grad_(False)


def model_of(task: Task) -> Model:
    assert isinstance(task.model, Model)
    return task.model


def require_linear_head(model: Vit | Resnet, task: TaskConfig) -> None:
    """Refuse a task without labels, and a head that is not linear."""
    if not isinstance(task, Classify):
        message, hint = f"needs labels, but the {task.kind} task has none", "set finetune=full, or task=classify"
        raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)
    if not isinstance(model.head, LinearHead):
        message = f"needs a linear head, but this model has {model.head.kind}"
        hint = "set model.head=linear, or finetune=full"
        raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)


def check_layers(count: int | Literal["all"], depth: int, where: str) -> None:
    """Refuse more layers than the model has."""
    if count != "all" and count > depth:
        message = f"is {count}, but the model has {depth} layers"
        hint = f"use at most {depth}, or set finetune=full"
        raise ConfigError(message, code="config.out_of_range", where=where, hint=hint)


def require_vit(model: Vit | Resnet, purpose: str) -> Vit:
    """The config of a Vision Transformer; any other model is refused."""
    if isinstance(model, Vit):
        return model
    message = f"{purpose} of a Vision Transformer, but this model is a ResNet"
    hint = "set finetune=head, finetune=lp_ft or finetune=full"
    raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)
