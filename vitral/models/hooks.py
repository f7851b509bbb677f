"""Observe a model: attention maps recomputed from recorded q and k, and a counter of FLOPs and memory.

B images, L tokens, H heads, d head width.
"""

import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry
from torch.utils.hooks import RemovableHandle

from vitral.core.errors import ConfigError
from vitral.models.attention import Qkv, SelfAttention
from vitral.models.base import Layout, Model
from vitral.models.pool import AttentionPooling

aten = torch.ops.aten

# FLOPs of products, convolutions and attention by operation; the registry of torch lacks the attention of CPUs.
ATTENTION = flop_registry[aten._scaled_dot_product_flash_attention]
FLOPS = {**flop_registry, aten._scaled_dot_product_flash_attention_for_cpu: ATTENTION}


class FlopCounter(TorchDispatchMode):
    """Counts multiply-adds and peak memory of what runs inside the `with`; works on meta tensors."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """Tensors in `known`, such as weights and inputs, are not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.multiply_adds = 0
        self.live = 0
        self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, operation: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = operation(*given, **(named or {}))
        if count := FLOPS.get(operation.overloadpacket):
            self.multiply_adds += count(*given, **(named or {}), out_val=result) // 2
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:  # otherwise a view of a counted tensor
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.live -= self._sizes.pop(key)


class AttentionRecord(NamedTuple):
    """The inputs of one attention, of a layer or of attention pooling."""

    layer: SelfAttention | AttentionPooling
    heads: Qkv
    layout: Layout
    attended: Tensor  # (B, queries, H d), the output of the heads, before its norm and projection

    def attention_weights(self) -> Tensor:
        """The attention (B, H, L, L), or (B, H, 1, L) of attention pooling; rows sum to one."""
        return self.layer.attention_weights(self.heads, self.layout)


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Evaluation mode inside the `with`; afterwards each module returns to the mode it was in."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


@contextmanager
def record_attention(model: nn.Module) -> Iterator[list[AttentionRecord]]:
    """Record the attention of every layer that runs inside the `with`, in order."""
    recordings: list[AttentionRecord] = []
    begun: dict[SelfAttention, tuple[Qkv, Layout]] = {}

    def listen(layer: SelfAttention) -> tuple[RemovableHandle, RemovableHandle]:
        def begin(_: nn.Module, inputs: tuple[Tensor, Layout, int], heads: Qkv) -> None:
            begun[layer] = heads, inputs[1]

        def end(_: nn.Module, inputs: tuple[Tensor]) -> None:
            recordings.append(AttentionRecord(layer, *begun.pop(layer), inputs[0]))

        return layer.heads.register_forward_hook(begin), layer.output_norm.register_forward_pre_hook(end)

    hooks = [hook for part in model.modules() if isinstance(part, SelfAttention) for hook in listen(part)]
    try:
        yield recordings
    finally:
        for hook in hooks:
            hook.remove()


@torch.no_grad()
def attention_maps(model: Model, images: Tensor) -> list[Tensor]:
    """The attention (B, H, L, L) of every layer on these images, without dropout."""
    with eval_mode(model), record_attention(model) as recordings:
        model.forward_features(images)
    if not recordings:
        message, hint = "this model has no attention", "use a model with mixer=attention"
        raise ConfigError(message, code="config.unsupported", where="model", hint=hint)
    weights = [recording.attention_weights() for recording in recordings]
    branches = len(weights) // len(list(model.get_submodule("blocks").children()))  # of a layer, side by side
    if branches == 1:
        return weights
    return [torch.cat(weights[first : first + branches], dim=1) for first in range(0, len(weights), branches)]
