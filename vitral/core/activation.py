"""From logits to probabilities, without importing torch.  B images, K classes."""

from typing import TYPE_CHECKING, Literal, overload

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

Activation = Literal["softmax", "sigmoid"]  # one class per image, or each class independently


@overload
def probabilities(logits: NDArray[np.float32], activation: Activation) -> NDArray[np.float32]: ...
@overload
def probabilities(logits: "Tensor", activation: Activation) -> "Tensor": ...
def probabilities(logits: "NDArray[np.float32] | Tensor", activation: Activation) -> "NDArray[np.float32] | Tensor":
    """The probability of each class (..., K). Those of softmax sum to one.

    Arrays are computed in float64 and returned as float32; tensors keep their type, device and graph.
    """
    if not isinstance(logits, np.ndarray):
        return logits.sigmoid() if activation == "sigmoid" else logits.softmax(dim=-1)
    exact = logits.astype(np.float64)
    if activation == "sigmoid":
        return np.exp(-np.logaddexp(0, -exact)).astype(np.float32)
    powers = np.exp(exact - exact.max(axis=-1, keepdims=True))  # (..., K)
    return (powers / powers.sum(axis=-1, keepdims=True)).astype(np.float32)
