"""Heads: pooled features to logits.  B images, D width, K classes."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.models.init import BaseInit, InitModule


class BaseHead(Config):
    """A logit for each class."""

    num_classes: int = Field(default=1000, ge=1, le=10_000_000)
    bias: float = 0.0  # initial; -10 for a sigmoid loss over 21,000 classes, -6.9 over 1,000


class LinearHead(BaseHead):
    """A linear layer initialized to zero: the paper's head for fine-tuning."""

    kind: Literal["linear"] = "linear"

    def build(self, width: int) -> nn.Module:
        return Classifier(width, self.num_classes, self.bias)


class Classifier(InitModule):
    def __init__(self, width: int, classes: int, start: float) -> None:
        super().__init__()
        self.start = start
        self.linear = nn.Linear(width, classes)

    def initialize(self, init: BaseInit) -> None:
        init.head(self.linear, self.start)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x)  # (B, K)


class TanhHead(BaseHead):
    """A tanh layer and a linear layer: the paper's head for pre-training."""

    kind: Literal["tanh"] = "tanh"
    hidden: Annotated[int, Field(ge=1, le=100_000)] | Literal["width"] = "width"

    def build(self, width: int) -> nn.Module:
        hidden = width if self.hidden == "width" else self.hidden
        return TanhClassifier(width, hidden, Classifier(hidden, self.num_classes, self.bias))


class TanhClassifier(InitModule):
    def __init__(self, width: int, hidden: int, classifier: nn.Module) -> None:
        super().__init__()
        self.hidden = nn.Linear(width, hidden)
        self.classifier = classifier

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.hidden(x).tanh())  # (B, K)


class NoHead(Config):
    """No head: the model returns pooled features."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> nn.Module:
        return nn.Identity()


HeadConfig = Annotated[LinearHead | TanhHead | NoHead, OpenUnion()]
