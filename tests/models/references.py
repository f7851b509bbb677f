"""Checkpoints that other libraries wrote, and the names that their tensors have in Vitral."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import safe_open
from torch import Tensor

FOLDER = Path(__file__).parent.parent / "fixtures"

Weights = dict[str, Tensor]
Rules = tuple[tuple[str, str], ...]

TORCH: Rules = (
    (r"self_attn\.in_proj_", "mixer.heads.qkv."),
    (r"self_attn\.out_proj", "mixer.project"),
    (r"linear1", "mlp.expand"),
    (r"linear2", "mlp.contract"),
    (r"norm1", "mixer_norm"),
    (r"norm2", "mlp_norm"),
)


class Reference(NamedTuple):
    """What a library's model is, and what it answered."""

    config: dict[str, Any]
    weights: Weights
    answers: Weights


def reference(name: str) -> Reference:
    with safe_open(FOLDER / f"{name}.safetensors", framework="pt") as file:
        tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        config = json.loads(file.metadata()["config"])
    weights = {key.removeprefix("weights/"): tensors.pop(key) for key in list(tensors) if key.startswith("weights/")}
    return Reference(config, weights, tensors)


def renamed(weights: Weights, rules: Rules) -> Weights:
    """The same tensors under our names."""

    def ours(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return {ours(name): tensor for name, tensor in weights.items()}
