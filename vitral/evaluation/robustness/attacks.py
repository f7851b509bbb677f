"""Adversarial images and patches. Pixels are float32 from 0 to 1.

B images, C channels, H rows, W columns, K classes, s the side of a patch.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from vitral.core.activation import Activation
from vitral.core.rng import Purpose, rng_for

Forward = Callable[[Tensor], Tensor]  # of pixels (B, C, H, W), the logits (B, K)
PGD_STEPS = 10
PATCH_BATCH, PATCH_RATE = 32, 0.1  # the rate falls to 0
PATCH_AREAS = (0.01, 0.025, 0.05, 0.1, 0.2)  # shares of the image


def loss_of(logits: Tensor, labels: Tensor, activation: Activation) -> Tensor:
    """The loss of each image (B,): attacks make it large."""
    if activation == "softmax":
        return cross_entropy(logits, labels, reduction="none")
    own = logits.gather(1, labels[:, None])[:, 0]  # classes on their own: the right one below the best of the others
    return logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1) - own


def input_gradient(forward: Forward, pixels: Tensor, labels: Tensor, activation: Activation) -> Tensor:
    """The gradient of each image's loss (B, C, H, W)."""
    with torch.enable_grad():
        given = pixels.detach().requires_grad_(True)
        loss = loss_of(forward(given), labels, activation).sum()
        (found,) = torch.autograd.grad(loss, given)
    return found


def fgsm(forward: Forward, pixels: Tensor, labels: Tensor, epsilon: float, activation: Activation) -> Tensor:
    """One step by `epsilon` in the direction of the gradient's sign (arXiv 1412.6572)."""
    step = epsilon * input_gradient(forward, pixels, labels, activation).sign()
    return (pixels + step).clamp(0, 1)


def pgd(
    forward: Forward, pixels: Tensor, labels: Tensor, epsilon: float, activation: Activation, start: Tensor
) -> Tensor:
    """Ten steps within `epsilon` of each pixel (arXiv 1706.06083), from `start` in [-1, 1] times epsilon."""
    found = (pixels + epsilon * start).clamp(0, 1)
    for _ in range(PGD_STEPS):
        found = found + epsilon / 4 * input_gradient(forward, found, labels, activation).sign()
        found = torch.maximum(torch.minimum(found, pixels + epsilon), pixels - epsilon).clamp(0, 1)
    return found


def patch_side(area: float, height: int, width: int) -> int:
    """The side of a square patch that covers this share of the image."""
    return max(1, min(height, width, round((area * height * width) ** 0.5)))


def paste(pixels: Tensor, patch: Tensor, places: Tensor) -> Tensor:
    """The images with the patch (C, s, s) at a place (top, left) of each, (B, 2). Gradients reach the patch."""
    side = patch.shape[-1]
    rows = places[:, 0, None] + torch.arange(side)  # (B, s)
    columns = places[:, 1, None] + torch.arange(side)
    found = pixels.clone()
    images = torch.arange(len(pixels))[:, None, None]
    found[images, :, rows[:, :, None], columns[:, None, :]] = patch.permute(1, 2, 0).expand(len(pixels), -1, -1, -1)
    return found


def random_places(numbers: np.ndarray, side: int, height: int, width: int) -> Tensor:
    """Places (B, 2) of a patch inside of images, from numbers in [0, 1), (B, 2)."""
    return torch.from_numpy((numbers * [height - side + 1, width - side + 1]).astype(np.int64))


def random_patch(seed: int, side: int, channels: int) -> Tensor:
    """A patch of noise (C, s, s)."""
    drawn = rng_for(seed, Purpose.ROBUSTNESS, 0, side).random((channels, side, side))
    return torch.from_numpy(drawn).float()


def optimize_patch(
    forward: Forward,
    pixels: Tensor,
    labels: Tensor,
    side: int,
    seed: int,
    activation: Activation,
    steps: int,
    advance: Callable[[int], None],
) -> Tensor:
    """One patch (C, s, s) for all images and places, which makes their losses large (arXiv 1712.09665, untargeted)."""
    patch = random_patch(seed, side, pixels.shape[1]).to(pixels.device)
    for step in range(steps):
        rng = rng_for(seed, Purpose.ROBUSTNESS, 1 + step, side)
        chosen = torch.from_numpy(rng.permutation(len(pixels))[:PATCH_BATCH])
        places = random_places(rng.random((len(chosen), 2)), side, *pixels.shape[-2:])
        with torch.enable_grad():
            given = patch.detach().requires_grad_(True)
            loss = loss_of(forward(paste(pixels[chosen], given, places)), labels[chosen], activation).mean()
            (gradient,) = torch.autograd.grad(loss, given)
        patch = (patch + PATCH_RATE * (1 - step / steps) * gradient.sign()).clamp(0, 1)
        advance(len(chosen))
    return patch
