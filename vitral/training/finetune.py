"""What of a model learns when a run starts from weights.

A head that is fitted to frozen features, before they are tuned.  B images of N, D width, K classes.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.models.base import Model
from vitral.models.head import Classifier, LinearHead
from vitral.models.resnet import Resnet
from vitral.models.vit import VisionTransformer, Vit
from vitral.tasks.classify import Classify
from vitral.tasks.registry import TaskConfig
from vitral.tasks.task import Task
from vitral.training.loop import Microbatch
from vitral.training.lora import LoraTarget, add_adapters, merge_adapters, target_layers


class LinearFit(NamedTuple):
    """A linear map from features to logits."""

    weight: Tensor  # (K, D)
    bias: Tensor  # (K,)


FitHead = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]  # features (N, D), labels (N,) to weight (K, D), bias (K,)


class TrainImages(NamedTuple):
    """What a run hands in for a look at its training images before the first step."""

    batches: Callable[[], Iterable[Sequence[Microbatch]]]  # each image once, seen as in evaluation
    gather: Callable[[Tensor], Tensor]  # the rows of all processes, those of the first one first
    is_main: bool  # whether this process is that one
    fit: FitHead


def extract_features(model: Model, look: TrainImages) -> tuple[Tensor, Tensor]:
    """The vectors that the head reads (N, D), of all training images, and their labels (N,), on the CPU."""
    before = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = [
                (model.forward_pooled(portion.images).float(), portion.labels)  # (B, D), (B,)
                for portions in look.batches()
                for portion in portions
            ]
    finally:
        model.train(before)
    features, labels = (look.gather(torch.cat(rows)).cpu() for rows in zip(*found, strict=True))
    return features, labels


def fit_head(features: Tensor, labels: Tensor, look: TrainImages) -> LinearFit:
    """What the first process fits, for all of them: the others add no rows to it."""
    weight, bias = look.fit(features, labels) if look.is_main else (features[:0], features[:0, 0])  # (K, D), (K,)
    return LinearFit(look.gather(weight), look.gather(bias))


class FinetuneMethod(Config):
    """The hooks of a kind, in the order of their use; here each changes nothing."""

    needs_weights: ClassVar[bool] = True  # whether it makes no sense for weights that are drawn
    needs_train_images: ClassVar[bool] = False  # whether it sees all training images once before the first step

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        """Refuse what cannot be done with this start, model and task."""
        if self.needs_weights and not weights:
            message = "keeps what the weights know, and this run starts from fresh ones"
            hint = "give weights to start from, --from WEIGHTS, or set finetune=full"
            raise ConfigError(message, code="config.missing_value", where="finetune", hint=hint)

    def apply(self, task: Task) -> None:
        """Freeze what is not to learn, add what is; before the task is spread, whether it starts or goes on."""

    def prepare(self, task: Task, look: TrainImages) -> str:
        """What is done once, before the first step of a run, and a line on it; empty where there is nothing to tell."""
        return ""

    def merge_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The state of the model as that of an ordinary one, by its names: what a bundle holds."""
        return dict(tensors)


class FullFinetune(FinetuneMethod):
    """All weights learn, as in the paper."""

    needs_weights: ClassVar[bool] = False

    kind: Literal["full"] = "full"


class HeadOnly(FinetuneMethod):
    """The head learns and all below it is frozen: a linear probe by gradient descent."""

    kind: Literal["head"] = "head"

    def apply(self, task: Task) -> None:
        model = model_of(task)
        freeze_all_but(model, [model.head])


class LastLayers(FinetuneMethod):
    """The last blocks learn, with the norm, pool and head that follow; the stem and earlier blocks are frozen."""

    kind: Literal["last_layers"] = "last_layers"
    count: int = Field(default=2, ge=1)

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        depth = require_vit(model, "counts the layers").depth
        if self.count > depth:
            message = f"{self.count} of the last layers are to learn, and the model has {depth}"
            hint = f"use at most {depth}, or set finetune=full"
            raise ConfigError(message, code="config.out_of_range", where="finetune.count", hint=hint)

    def apply(self, task: Task) -> None:
        model = model_of(task)
        assert isinstance(model, VisionTransformer)
        freeze_all_but(model, [*model.blocks[-self.count :], model.norm, model.pool, model.head])


class LinearProbeThenFinetune(FinetuneMethod):
    """First the head is fitted to frozen features, then everything is tuned (LP-FT, arXiv 2202.10054).

    Gradients through a head of zeros would bend the features before it knows anything.
    """

    needs_train_images: ClassVar[bool] = True

    kind: Literal["lp_ft"] = "lp_ft"

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        if not isinstance(task, Classify):
            message = f"the head is fitted to labels, and the {task.kind} task has none"
            hint = "set finetune=full, or task=classify"
            raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)
        if not isinstance(model.head, LinearHead):
            message = f"a linear head can be fitted to features, and this one is {model.head.kind}"
            hint = "set model.head=linear, or finetune=full"
            raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)

    def prepare(self, task: Task, look: TrainImages) -> str:
        model = model_of(task)
        assert isinstance(model.head, Classifier)
        features, labels = extract_features(model, look)  # (N, D), (N,)
        weight, bias = fit_head(features, labels, look)  # (K, D), (K,)
        right = ((features @ weight.mT + bias).argmax(dim=1) == labels).double().mean().item()
        with torch.no_grad():
            model.head.linear.weight.copy_(weight)
            model.head.linear.bias.copy_(bias)
        return f"the head was fitted to frozen features: right on {right:.1%} of {len(labels):,} training images"


class Lora(FinetuneMethod):
    """Low-rank adapters learn beside frozen weights, and the head does (arXiv 2106.09685)."""

    kind: Literal["lora"] = "lora"
    rank: int = Field(default=8, ge=1, le=10_000)
    alpha: float = Field(default=16.0, gt=0)  # an adapter counts alpha / rank times
    modules: tuple[LoraTarget, ...] = ("qkv", "project", "mlp")  # of every block: which linear maps have one

    @model_validator(mode="after")
    def some_parts(self) -> Self:
        if not self.modules:
            hint = "name qkv, project or mlp"
            raise ConfigError("no part has an adapter", code="config.missing_value", where="parts", hint=hint)
        return self

    @property
    def scale(self) -> float:
        """How much an adapter counts."""
        return self.alpha / self.rank

    def check(self, weights: str, model: Vit | Resnet, task: TaskConfig) -> None:
        super().check(weights, model, task)
        blocks = require_vit(model, "adapts the linear maps").build_empty().blocks
        if not any(target_layers(blocks, self.modules)):
            message = f"the blocks of this model have no {' or '.join(self.modules)} to adapt"
            hint = "name other parts, or set finetune=last_layers"
            raise ConfigError(message, code="config.unsupported", where="finetune.modules", hint=hint)

    def apply(self, task: Task) -> None:
        model = model_of(task)
        assert isinstance(model, VisionTransformer)
        freeze_all_but(model, [model.head])
        add_adapters(model.blocks, self.modules, self.rank, self.scale)

    def merge_state(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return merge_adapters(tensors, self.scale)


FinetuneConfig = Annotated[
    FullFinetune | HeadOnly | LastLayers | LinearProbeThenFinetune | Lora, Field(discriminator="kind")
]


def freeze_all_but(model: nn.Module, free: Iterable[nn.Module]) -> None:
    """Have every weight outside these parts stay as it is; one that is frozen already stays so."""
    kept = {weight for part in free for weight in part.parameters()}
    for weight in model.parameters():
        if weight not in kept:
            weight.requires_grad_(False)


def model_of(task: Task) -> Model:
    assert isinstance(task.model, Model)
    return task.model


def require_vit(model: Vit | Resnet, purpose: str) -> Vit:
    """The model, if it is a Vision Transformer; any other is refused."""
    if isinstance(model, Vit):
        return model
    message = f"{purpose} of a Vision Transformer, and this model is a ResNet"
    hint = "set finetune=head, finetune=lp_ft or finetune=full"
    raise ConfigError(message, code="config.unsupported", where="finetune", hint=hint)
