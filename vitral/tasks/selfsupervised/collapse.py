"""Signs of collapse: outputs that no longer depend on the image.  B images, D width, K outputs.

A task has them as metrics, each between 0 and 1, over the batch of all processes; an empty batch has 0.
"""

from math import log

import torch
import torch.nn.functional as F
from torch import Tensor

from vitral.tasks.task import Collective, full_precision


@torch.no_grad()
def feature_std(features: Tensor, collective: Collective) -> Tensor:
    """How far features (B, D) on the unit sphere are spread: 1 in all directions, 0 if all are the same.

    The mean over the D directions of their standard deviation over the images, times the square root of D.
    """
    points = F.normalize(full_precision(features.detach()), dim=1)  # (B, D)
    count = collective.sum(points.new_tensor(float(len(points)))).clamp(min=1)
    mean = collective.sum(points.sum(dim=0)) / count  # (D,)
    variance = collective.sum((points - mean).square().sum(dim=0)) / count  # (D,)
    return (variance.sqrt().mean() * points.shape[1] ** 0.5).float()


@torch.no_grad()
def effective_rank(features: Tensor, collective: Collective) -> Tensor:
    """How many directions features (B, D) take, as a fraction of all: (sum of eigenvalues)^2 / sum of their squares.

    The eigenvalues are those of the covariance. All directions alike give 1, a line gives 1 / D.
    """
    rows = full_precision(features.detach())
    count = collective.sum(rows.new_tensor(float(len(rows)))).clamp(min=1)
    rows = rows - collective.sum(rows.sum(dim=0)) / count
    covariance = collective.sum(rows.mT @ rows)  # (D, D), times the number of images
    squares = covariance.square().sum()  # the sum of the squared eigenvalues
    least = torch.finfo(squares.dtype).tiny
    return (covariance.trace().square() / squares.clamp(min=least) / rows.shape[1]).float()


@torch.no_grad()
def mean_entropy(probabilities: Tensor) -> Tensor:
    """The mean entropy of distributions (..., K), as a fraction of that of a uniform one."""
    rows = probabilities.detach().flatten(0, -2)  # (rows, K)
    entropy = -torch.xlogy(rows, rows).sum(dim=-1)  # (rows,)
    return entropy.sum() / max(1, len(entropy)) / log(rows.shape[-1])


@torch.no_grad()
def batch_entropy(probabilities: Tensor, collective: Collective) -> Tensor:
    """The entropy of the mean of distributions (B, K) over the batch, as a fraction of that of a uniform one.

    It is 0 if all images have the same output.
    """
    rows = full_precision(probabilities.detach())
    count = collective.sum(rows.new_tensor(float(len(rows)))).clamp(min=1)
    mean = collective.sum(rows.sum(dim=0)) / count  # (K,)
    return (-torch.xlogy(mean, mean).sum() / log(len(mean))).float()
