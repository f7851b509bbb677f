"""Tensor names of Hugging Face's transformers: in published files, and in the library since version 5."""

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from torch import Tensor

from vitral.core.errors import WeightsError
from vitral.models.attention import Attention
from vitral.models.block import LayerScale
from vitral.models.mlp import SwiGlu
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.rules import Rule, affine, concatenated, mapped, same

HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")  # beside the tower, not in it
MASK_TOKEN = (r"embeddings\.mask_token", "stands for hidden patches in pre-training")

# Inside the library, since version 5, with the names that published files have.
RENAMED_SINCE_V5 = (
    (r"^layers\.", "encoder.layer."),
    (r"\battention\.q_proj\.", "attention.attention.query."),
    (r"\battention\.k_proj\.", "attention.attention.key."),
    (r"\battention\.v_proj\.", "attention.attention.value."),
    (r"\battention\.o_proj\.", "attention.output.dense."),
)
RENAMED_MLP_SINCE_V5 = ((r"\bmlp\.fc1\.", "intermediate.dense."), (r"\bmlp\.fc2\.", "output.dense."))


class Names(NamedTuple):
    """How to get from the names in a file to those of a tower by itself, as published."""

    towers: tuple[str, ...]  # what may stand before them: `vit.`
    renamed: tuple[tuple[str, str], ...] = ()  # patterns and what to put in their place
    dropped: tuple[tuple[str, str], ...] = ()  # patterns of what no model here has a use for, and why

    def short(self, name: str) -> str:
        """The name without what stands before it, as published."""
        for tower in self.towers:
            name = name.removeprefix(tower)
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name

    def reason(self, short: str) -> str:
        """Why a tensor is of no use, or nothing."""
        return next((why for pattern, why in self.dropped if re.match(pattern, short)), "")


class TowerTensors(NamedTuple):
    """The tensors of a file by short names, and the names of those that are of no use, each with the reason."""

    tensors: dict[str, Tensor]
    dropped: dict[str, str]


def sort_tensors(ckpt: Checkpoint, names: Names) -> TowerTensors:
    """What is of use in a file, and what is not."""
    found = TowerTensors({}, {})
    origins: dict[str, str] = {}
    for name, tensor in ckpt.tensors.items():
        short = names.short(name)
        if reason := names.reason(short):
            found.dropped[name] = reason
        elif short in origins:
            message = f"supported the same tensor twice, as {origins[short]} and as {name}"
            hint = "give a file with one of them"
            raise WeightsError(message, code="weights.duplicate_tensor", where=ckpt.path, hint=hint)
        else:
            origins[short], found.tensors[short] = name, tensor
    return found


def add_prefix(tensors: Mapping[str, Tensor], before: str) -> dict[str, Tensor]:
    """The tensors by the names that they have in a whole model, whose tower has a name."""
    return {name if name.startswith(HEADS) else before + name: tensor for name, tensor in tensors.items()}


class LayerNames(NamedTuple):
    """What the parts of a layer are called."""

    qkv: tuple[str, str, str]
    project: str
    norms: tuple[str, str]
    mlp: tuple[str, str]
    gated: tuple[str, ...] = ()  # in the place of the MLP's two maps; three where gate and value stand apart
    scales: tuple[str, str] = ("layer_scale1.lambda1", "layer_scale2.lambda1")


ATTENTION = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
BERT = LayerNames(
    qkv=ATTENTION,
    project="attention.output.dense",
    norms=("layernorm_before", "layernorm_after"),
    mlp=("intermediate.dense", "output.dense"),
)
DINO = LayerNames(
    qkv=ATTENTION,
    project="attention.output.dense",
    norms=("norm1", "norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
    gated=("mlp.weights_in", "mlp.weights_out"),
)
DINO3 = LayerNames(
    qkv=("attention.q_proj", "attention.k_proj", "attention.v_proj"),
    project="attention.o_proj",
    norms=("norm1", "norm2"),
    mlp=("mlp.up_proj", "mlp.down_proj"),
    gated=("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)
CLIP = LayerNames(
    qkv=("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    project="self_attn.out_proj",
    norms=("layer_norm1", "layer_norm2"),
    mlp=("mlp.fc1", "mlp.fc2"),
)


def layer_rules(model: Vit, names: LayerNames, theirs: str) -> list[Rule]:
    """The rules of every layer; theirs are `encoder.layer.` and a number."""
    assert isinstance(model.mixer, Attention)
    rules = []
    for layer in range(model.depth):
        own, other = f"blocks.{layer}", f"{theirs}{layer}"
        *expand, contract = names.gated if isinstance(model.mlp, SwiGlu) else names.mlp
        parts = {
            "mixer.project": names.project,
            "mixer_norm": names.norms[0],
            "mlp_norm": names.norms[1],
            "mlp.contract": contract,
        }
        rules += affine_rules({f"{own}.{mine}": f"{other}.{name}" for mine, name in parts.items()})
        rules += concatenated_affine(
            f"{own}.mixer.heads.qkv", [f"{other}.{name}" for name in names.qkv], model.mixer.qkv_bias
        )
        rules += concatenated_affine(f"{own}.mlp.expand", [f"{other}.{name}" for name in expand])
        if isinstance(model.block.scale, LayerScale):
            for branch, name in zip(("mixer_branch", "mlp_branch"), names.scales, strict=True):
                rules.append(same(f"{own}.{branch}.scale.factor", f"{other}.{name}"))
    return rules


def concatenated_affine(ours: str, theirs: Sequence[str], bias: bool = True) -> list[Rule]:
    """Weight and bias of a map of ours that is one map or several of theirs."""
    parts = ("weight", "bias")[: 1 + bias]
    return [concatenated(f"{ours}.{part}", [f"{name}.{part}" for name in theirs]) for part in parts]


def affine_rules(pairs: Mapping[str, str]) -> list[Rule]:
    """Weight and bias of each map or norm, ours to theirs."""
    return [rule for own, other in pairs.items() for rule in affine(own, other)]


def unsqueezed(ours: str, theirs: str) -> Rule:
    """A tensor that has one dimension more in ours, of one, in front."""
    return mapped(ours, theirs, lambda found: found[None], lambda own: own[0])
