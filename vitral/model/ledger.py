"""The cost of a model, read off its own run on tensors without values: nothing is computed, everything is counted."""

import weakref
from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

aten = torch.ops.aten

# Multiply-adds of the operations that have any worth counting, from their inputs and their result.
MULTIPLY_ADDS: dict[Any, Callable[[Sequence[Any], Any], int]] = {
    aten.mm: lambda given, result: result.numel() * given[0].shape[-1],
    aten.bmm: lambda given, result: result.numel() * given[0].shape[-1],
    aten.addmm: lambda given, result: result.numel() * given[1].shape[-1],
    aten.baddbmm: lambda given, result: result.numel() * given[1].shape[-1],
    aten.convolution: lambda given, result: result.numel() * prod(given[1].shape[1:]),
    aten._scaled_dot_product_flash_attention_for_cpu: lambda given, _: 2 * given[0].numel() * given[1].shape[-2],
}


class Ledger(TorchDispatchMode):
    """Counts multiply-adds, and the bytes that live at once, of what runs inside the `with`."""

    def __init__(self, known: Iterable[Tensor]) -> None:
        """What is known beforehand, such as weights and inputs, is not counted."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.multiply_adds = 0
        self.live = 0
        self.peak = 0
        self._sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, operation: Any, types: Any, given: Any = (), named: Any = None) -> Any:
        result = operation(*given, **(named or {}))
        count = MULTIPLY_ADDS.get(operation.overloadpacket)
        self.multiply_adds += count(given, result) if count else 0
        for tensor in tree_leaves(result):
            if isinstance(tensor, Tensor):
                self._enter(tensor.untyped_storage())
        return result

    def _enter(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._sizes:  # else a view of what is counted already
            self._sizes[key] = storage.nbytes()
            self.live += storage.nbytes()
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._leave, key)

    def _leave(self, key: int) -> None:
        self.live -= self._sizes.pop(key)
