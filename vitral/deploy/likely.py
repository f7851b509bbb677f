"""From logits to what is likely, without torch.  B images, K classes."""

from collections.abc import Iterator

import numpy as np

from vitral.deploy.engine import Numbers


def probabilities(logits: Numbers) -> Numbers:
    """How likely each class is (B, K); the numbers of an image sum to one."""
    exact = logits.astype(np.float64)
    powers = np.exp(exact - exact.max(axis=1, keepdims=True))  # (B, K)
    return (powers / powers.sum(axis=1, keepdims=True)).astype(np.float32)


def likeliest(logits: Numbers, top: int) -> Iterator[list[tuple[int, float]]]:
    """For each image the likeliest classes by number, and how likely they are; of equal ones the first comes first."""
    order = np.argsort(-logits, axis=1, kind="stable")[:, :top]  # (B, top), by logits: chances may be equal at zero
    chances = np.take_along_axis(probabilities(logits), order, axis=1)  # (B, top)
    for places, numbers in zip(order.tolist(), chances.tolist(), strict=True):
        yield list(zip(places, numbers, strict=True))
