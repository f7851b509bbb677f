"""Muon: momentum whose matrices are orthogonalized by Newton-Schulz iterations (Keller Jordan et al., 2024).

For a matrix W (R rows, S columns) of a hidden layer, its gradient G and its momentum M,

    M <- m M + (1 - m) G
    U  = (1 - m) G + m M, or M without Nesterov
    W <- W - lr * weight_decay * W - lr * scale(R, S) * orthogonalize(U)

where orthogonalize(U) is close to the nearest matrix whose singular values are all 1.

`torch.optim.Muon` does not fit: it takes only whole matrices and iterates in bfloat16, in which two processes could not
repeat the steps of one.  n matrices of R rows and S columns.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import sqrt
from typing import Any, Literal, cast

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.adamw import adamw

from vitral.core.errors import ConfigError
from vitral.models.attention import QkvProjection
from vitral.models.mlp import BaseFeedForward
from vitral.models.position import AttentionPosition
from vitral.models.vit import VisionTransformer
from vitral.training.optimizers.base import (
    BaseOptimizer,
    Fraction,
    GroupOptimizer,
    param_groups,
    set_lr,
    supports_fused,
)

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the author: they raise small singular values fast, to between 0.7 and 1.2
ITERATIONS = 5
EPS = 1e-7  # added to the norm of a matrix
STACK = 2**22  # the most numbers that are orthogonalized at once


class Muon(BaseOptimizer):
    """Muon for the matrices of the blocks, AdamW for all other parameters.

    Queries, keys and values are matrices of their own though one layer computes them, and so are the two halves of
    SwiGLU. AdamW trains the stem, tokens, positions, norms, biases, pool and head, and what the task adds.
    """

    kind: Literal["muon"] = "muon"
    lr: float = Field(default=0.02, gt=0)  # of the matrices, at its peak
    momentum: Fraction = 0.95
    nesterov: bool = True
    # Factor of the learning rate for R rows and S columns: the author's sqrt(max(1, R / S)), or 0.2 sqrt(max(R, S)),
    # which suits learning rates and weight decay of AdamW (Moonlight, arXiv 2502.16982).
    adjust_lr: Literal["original", "match_rms_adamw"] = "original"
    weight_decay: float = Field(default=0.01, ge=0)  # of both; times the learning rate of each
    adamw_lr: float = Field(default=3e-4, gt=0)  # of all other parameters, at its peak
    adamw_betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    adamw_eps: float = Field(default=1e-10, gt=0)

    def build(self, task: nn.Module) -> Optimizer:
        matrices = hidden_matrices(task)
        groups = [
            split
            for group in param_groups(task, self.weight_decay, self.layer_decay, self.decayed)
            for split in split_group(group, matrices, self.adamw_lr / self.lr)
        ]
        if not any(group["matrices"] for group in groups):
            message = "trains the matrices of a Vision Transformer's blocks, but none of them is trained here"
            raise ConfigError(message, code="config.unsupported", where="optimizer", hint="set optimizer=adamw")
        options = self.model_dump(include={"lr", "momentum", "nesterov", "adjust_lr"})
        options |= {"betas": self.adamw_betas, "eps": self.adamw_eps, "fused": supports_fused(task)}
        optimizer = MuonWithAdamW(groups, options)
        set_lr(optimizer, self.lr)
        return optimizer


def hidden_matrices(task: nn.Module) -> dict[Tensor, int]:
    """The weights of the linear layers in the blocks, and how many matrices each of them is made of."""
    parts: dict[nn.Module, int] = {}
    for module in task.modules():
        if isinstance(module, QkvProjection):
            parts |= dict.fromkeys(_with_adapter(module.qkv), 3)
        elif isinstance(module, BaseFeedForward):
            parts |= dict.fromkeys(_with_adapter(module.expand), module.parts)
    positions = _submodules(task, AttentionPosition)
    blocks = [encoder.blocks for encoder in task.modules() if isinstance(encoder, VisionTransformer)]
    return {
        module.weight: parts.get(module, 1)
        for block in blocks
        for module in block.modules()
        if isinstance(module, nn.Linear) and module not in positions
    }


def _with_adapter(layer: nn.Module) -> list[nn.Module]:
    """A linear layer, and what has its outputs in an adapter that is a parametrization of it (LoRA)."""
    outputs = getattr(layer, "out_features", None)
    return [part for part in layer.modules() if isinstance(part, nn.Linear) and part.out_features == outputs]


def _submodules(task: nn.Module, kind: type[nn.Module]) -> set[nn.Module]:
    return {part for module in task.modules() if isinstance(module, kind) for part in module.modules()}


def split_group(group: dict[str, Any], matrices: dict[Tensor, int], adamw_scale: float) -> Iterator[dict[str, Any]]:
    """Split a parameter group by the number of matrices in a weight; 0 for what AdamW trains."""
    split: dict[int, list[tuple[str, Tensor]]] = defaultdict(list)
    for name, weight in group["params"]:
        split[matrices.get(weight, 0)].append((name, weight))
    for count, weights in split.items():
        scale = group["lr_scale"] * (1.0 if count else adamw_scale)
        yield {**group, "params": weights, "matrices": count, "lr_scale": scale}


class MuonWithAdamW(GroupOptimizer):
    """Muon for the groups with `matrices` in a weight, AdamW for the groups without.

    The matrices of a sharded model are gathered one after the other, and each process orthogonalizes all of them.
    """

    def step_group(self, group: dict[str, Any]) -> None:
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if weights and group["matrices"]:
            self._step_matrices(weights, group)
        elif weights:
            self._step_adamw(weights, group)

    def _step_matrices(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [cast(Tensor, weight.grad) for weight in weights]
        momentum, lr, count = group["momentum"], group["lr"], group["matrices"]
        momenta = self._state_of(weights, "momentum_buffer")
        torch._foreach_lerp_(momenta, gradients, 1 - momentum)
        updates = torch._foreach_lerp(gradients, momenta, momentum) if group["nesterov"] else momenta
        torch._foreach_mul_(weights, 1 - lr * group["weight_decay"])
        for index, update in orthogonalize_all(updates, count):
            rows, columns = update.shape
            weights[index].add_(update, alpha=-lr * lr_scale(rows // count, columns, group["adjust_lr"]))

    def _step_adamw(self, weights: list[Tensor], group: dict[str, Any]) -> None:
        for weight in weights:
            if "step" not in self.state[weight]:  # a fused step needs it on the device of the weight
                device = weight.device if group["fused"] else "cpu"
                self.state[weight]["step"] = torch.zeros((), dtype=torch.float32, device=device)
        adamw(
            weights,
            [cast(Tensor, weight.grad) for weight in weights],
            self._state_of(weights, "exp_avg"),
            self._state_of(weights, "exp_avg_sq"),
            [],
            [self.state[weight]["step"] for weight in weights],
            fused=group["fused"],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )

    def _state_of(self, weights: Iterable[Tensor], key: str) -> list[Tensor]:
        """The state of each weight by this name, zeros at first."""
        states = [self.state[weight] for weight in weights]
        for weight, state in zip(weights, states, strict=True):
            if key not in state:
                state[key] = torch.zeros_like(weight, memory_format=torch.preserve_format)
        return [state[key] for state in states]


def lr_scale(rows: int, columns: int, adjust_lr: str) -> float:
    """The factor of the learning rate for a matrix."""
    return 0.2 * sqrt(max(rows, columns)) if adjust_lr == "match_rms_adamw" else sqrt(max(1.0, rows / columns))


def orthogonalize_all(updates: Sequence[Tensor], count: int) -> Iterator[tuple[int, Tensor]]:
    """Yield the index and the orthogonalized update of each weight, of which each is made of `count` matrices.

    Weights of one shape are stacked, since a small model has many small matrices.
    """
    shapes: dict[tuple[int, ...], list[int]] = defaultdict(list)
    for index, update in enumerate(updates):
        shapes[tuple(update.shape)].append(index)
    for (rows, columns), indices in shapes.items():
        size = max(1, STACK // (rows * columns))
        for start in range(0, len(indices), size):
            chosen = indices[start : start + size]
            stack = torch.stack([_gather(updates[index]) for index in chosen])  # (n, R, S)
            matrices = orthogonalize(stack.view(-1, rows // count, columns))  # (n count, R / count, S)
            for index, matrix in zip(chosen, matrices.reshape(stack.shape), strict=True):
                yield index, _shard_like(matrix, updates[index])


def orthogonalize(matrices: Tensor) -> Tensor:
    """Raise the singular values of matrices (n, R, S) to about 1, by Newton-Schulz iterations."""
    a, b, c = COEFFICIENTS
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices  # the smaller side is squared
    x = wide / (torch.linalg.matrix_norm(wide, keepdim=True) + EPS)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)  # a X + (b A + c A A) X
    return x.mT if matrices.shape[1] > matrices.shape[2] else x  # (n, R, S)


def _gather(tensor: Tensor) -> Tensor:
    """The whole tensor, if it is the shard of one. A collective."""
    gather: Callable[[], Tensor] | None = getattr(tensor, "full_tensor", None)
    return tensor if gather is None else gather()


def _shard_like(full: Tensor, tensor: Tensor) -> Tensor:
    """The shard of a tensor that this process has of another one; the tensor itself if that is whole."""
    if not hasattr(tensor, "full_tensor"):
        return full
    from torch.distributed.tensor import DTensor, distribute_tensor  # imports much of torch.distributed

    assert isinstance(tensor, DTensor)
    return distribute_tensor(full, tensor.device_mesh, tensor.placements, src_data_rank=None)
