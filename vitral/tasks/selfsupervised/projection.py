"""Projection heads: what maps the features of a model to what a loss compares.

B rows, D width of the features, K outputs. Heads have no part in the trained model.
"""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitral.models.base import Model
from vitral.tasks.task import Synchronized

INIT_STD = 0.02
BOTTLENECK_EPS = 1e-12  # of the norm of a vector, as in torch


def initialize_linear(linear: nn.Linear) -> None:
    """A normal distribution truncated at two units, with a small standard deviation, as DINO's heads start."""
    nn.init.trunc_normal_(linear.weight, std=INIT_STD)
    if linear.bias is not None:
        nn.init.zeros_(linear.bias)


class WeightNormLinear(nn.Linear):
    """A linear map without bias whose rows have a length that is a parameter of its own (arXiv 1602.07868).

        y = g v x / |v|

    g starts at 1, v as torch initializes a linear layer. Where g is frozen, outputs are cosines with the rows.
    """

    def __init__(self, in_features: int, out_features: int, frozen_length: bool) -> None:
        super().__init__(in_features, out_features, bias=False)
        self.length = nn.Parameter(torch.ones(out_features, 1), requires_grad=not frozen_length)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.weight * (self.length / self.weight.norm(dim=1, keepdim=True))  # (K, D)
        return F.linear(x, rows)


class DinoHead(nn.Module):
    """Three layers with GELU, the unit sphere, and a weight-normed map to the outputs (DINO, arXiv 2104.14294)."""

    def __init__(self, width: int, hidden: int, bottleneck: int, outputs: int, frozen_length: bool) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        for layer in self.layers:
            if isinstance(layer, nn.Linear):
                initialize_linear(layer)
        self.last = WeightNormLinear(bottleneck, outputs, frozen_length)

    def points(self, features: Tensor) -> Tensor:
        """The points on the unit sphere (B, bottleneck) that the last layer maps to the outputs."""
        return F.normalize(self.layers(features), dim=-1, eps=BOTTLENECK_EPS)

    def forward(self, features: Tensor) -> Tensor:
        return self.last(self.points(features))  # (B, K)


class BatchNorm(Synchronized):
    """Batch normalization of rows (B, D) over the batch of all processes (arXiv 1502.03167).

    Torch's SyncBatchNorm needs GPUs; sums of any process group suffice.
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, width: int, affine: bool = True, eps: float = 1e-5, momentum: float = 0.1) -> None:
        super().__init__()
        self.eps, self.momentum = eps, momentum
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None
        self.register_buffer("mean", torch.zeros(width))  # running averages, for evaluation
        self.register_buffer("variance", torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.collective.size == 1 and len(x) > 1:  # several times faster
            return F.batch_norm(x, self.mean, self.variance, self.weight, self.bias, True, self.momentum, self.eps)
        values = x if x.dtype == torch.float64 else x.float()
        mean, variance = self._batch_statistics(values) if self.training else (self.mean, self.variance)
        normal = (values - mean) * (variance + self.eps).rsqrt()
        if self.weight is not None and self.bias is not None:
            normal = normal * self.weight + self.bias
        return normal.to(x.dtype)

    def _batch_statistics(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The mean and the biased variance of each column over all processes."""
        count = self.collective.sum(x.new_tensor([float(len(x))]))
        mean = self.collective.sum(x.sum(dim=0)) / count.clamp(min=1)
        variance = self.collective.sum((x - mean).square().sum(dim=0)) / count.clamp(min=1)
        with torch.no_grad():
            momentum = self.momentum * (count > 0).to(self.mean)  # an empty batch leaves no trace
            unbiased = variance * (count / (count - 1).clamp(min=1))
            self.mean.lerp_(mean.to(self.mean), momentum)
            self.variance.lerp_(unbiased.to(self.variance), momentum)
        return mean, variance


def batch_norm_mlp(widths: list[int], last_affine: bool) -> nn.Sequential:
    """Linear layers without bias, each but the last with batch norm and ReLU; the last with batch norm (MoCo v3)."""
    layers: list[nn.Module] = []
    for number, (inputs, outputs) in enumerate(pairwise(widths), start=1):
        last = number == len(widths) - 1
        layers += [nn.Linear(inputs, outputs, bias=False), BatchNorm(outputs, affine=last_affine or not last)]
        layers += [] if last else [nn.ReLU()]
    return nn.Sequential(*layers)


def pooled_width(model: Model) -> int:
    """The width of the pooled features of a model."""
    with torch.no_grad():
        return int(model.forward_pooled(model.empty_batch().to(next(model.parameters()))).shape[1])
