"""The private APIs of torch that engines use: each has no public equal, and a fallback where a torch lacks it.

`pack_weight`, `packed_linear`: a linear layer with its weight in oneDNN's blocked layout, and tanh GELU fused into it.
The public ways are slower: `F.linear`, which reorders the weight at every call (1.6 times the seconds of a Ti/16 at
batch 1, in one run on a busy 2-core machine), and `torch.utils.mkldnn`, which converts every input and fuses no GELU
(1.3 times). Without them the eager engine runs the layers as they are.

`freeze_weights`: inductor treats weights as constants and packs them. As an option of `torch.compile` the setting comes
too late: by then the weights are inputs of the graph. Without it compiled code is slower.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Literal

import torch
from torch import Tensor

GELU = Literal["none", "tanh"]


def can_pack() -> bool:
    """Whether this torch has packed linear layers."""
    names = ("_reorder_linear_weight", "_linear_pointwise")
    return torch.backends.mkldnn.is_available() and all(hasattr(torch.ops.mkldnn, name) for name in names)


def pack_weight(weight: Tensor) -> Tensor:
    """The weight (out, in) in oneDNN's layout, which only `packed_linear` takes."""
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return packed


def packed_linear(x: Tensor, weight: Tensor, bias: Tensor | None, gelu: GELU) -> Tensor:
    """A linear layer with a packed weight, followed by the tanh form of GELU or by nothing."""
    kind, form = ("none", "") if gelu == "none" else ("gelu", gelu)
    product: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, kind, [], form)
    return product


def freeze_weights() -> AbstractContextManager[object]:
    """What is compiled meanwhile has its weights as constants."""
    try:
        from torch._inductor import config

        patched: AbstractContextManager[object] = config.patch({"freezing": True})
    except (ImportError, AttributeError):
        return nullcontext()
    return patched
