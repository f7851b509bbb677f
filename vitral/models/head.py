"""Heads: pooled features to logits.  B images, D width, K classes."""

from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from vitral.core.config import Config, OpenUnion
from vitral.models.activation import ActivationName, activate
from vitral.models.init import BaseInit, InitModule


class BaseHead(Config):
    """A logit for each class."""

    num_classes: int = Field(default=1000, ge=1, le=10_000_000)
    bias: float = 0.0  # initial; -10 for a sigmoid loss over 21,000 classes, -6.9 over 1,000
    temperature: float = Field(default=1.0, gt=0)  # divides the logits; fitted on held-out images (arXiv 1706.04599)


class LinearHead(BaseHead):
    """A linear layer initialized to zero: the paper's head for fine-tuning."""

    kind: Literal["linear"] = "linear"

    def build(self, width: int) -> nn.Module:
        return Classifier(width, self)


class Classifier(InitModule):
    def __init__(self, width: int, config: BaseHead) -> None:
        super().__init__()
        self.start, self.temperature = config.bias, config.temperature
        self.linear = nn.Linear(width, config.num_classes)

    def initialize(self, init: BaseInit) -> None:
        init.head(self.linear, self.start)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.linear(x)  # (B, K)
        return logits if self.temperature == 1 else logits / self.temperature


class TanhHead(BaseHead):
    """A hidden layer with an activation, then a linear layer: with tanh, the paper's head for pre-training."""

    kind: Literal["tanh"] = "tanh"
    hidden: Annotated[int, Field(ge=1, le=100_000)] | Literal["width"] = "width"
    activation: ActivationName = "tanh"  # of the hidden layer

    def build(self, width: int) -> nn.Module:
        hidden = width if self.hidden == "width" else self.hidden
        return HiddenClassifier(width, hidden, self.activation, Classifier(hidden, self))


class HiddenClassifier(InitModule):
    def __init__(self, width: int, hidden: int, activation: ActivationName, classifier: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.hidden = nn.Linear(width, hidden)
        self.classifier = classifier

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.hidden)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(activate(self.hidden(x), self.activation))  # (B, K)


class DistilledHead(BaseHead):
    """DeiT's two heads, one on each half of the pooled vector; the logits are their mean (arXiv 2012.12877)."""

    kind: Literal["distilled"] = "distilled"

    def build(self, width: int) -> nn.Module:
        return DistilledClassifier(*(Classifier(width // 2, self) for _ in range(2)))


class DistilledClassifier(nn.Module):
    def __init__(self, cls: nn.Module, distilled: nn.Module) -> None:
        super().__init__()
        self.cls, self.distilled = cls, distilled

    def forward(self, x: Tensor) -> Tensor:
        cls, distilled = x.chunk(2, dim=-1)  # each (B, D)
        return (self.cls(cls) + self.distilled(distilled)) / 2  # (B, K)


class NoHead(Config):
    """No head: the model returns pooled features."""

    kind: Literal["none"] = "none"

    def build(self, width: int) -> nn.Module:
        return nn.Identity()

    def out_width(self, width: int) -> int:
        """The width of what the model returns, for pooled vectors of this width."""
        return width


class ProjectionHead(NoHead):
    """A linear map of the pooled features to an embedding that texts share, as in CLIP (arXiv 2103.00020).

    With a bias and tanh, it is the pooler of Hugging Face's ViT.
    """

    kind: Literal["projection"] = "projection"  # type: ignore[assignment]
    width: int = Field(default=512, ge=1, le=100_000)
    bias: bool = False
    activation: ActivationName = "identity"

    def build(self, width: int) -> nn.Module:
        return Projection(self, width)

    def out_width(self, width: int) -> int:
        return self.width


class Projection(InitModule):
    def __init__(self, config: ProjectionHead, width: int) -> None:
        super().__init__()
        self.activation = config.activation
        self.linear = nn.Linear(width, config.width, bias=config.bias)

    def initialize(self, init: BaseInit) -> None:
        init.dense(self.linear)

    def forward(self, x: Tensor) -> Tensor:
        return activate(self.linear(x), self.activation)  # (B, out)


HeadConfig = Annotated[LinearHead | TanhHead | DistilledHead | ProjectionHead | NoHead, OpenUnion()]
