"""What the library calls its tensors: in published files, and inside itself since version 5."""

import re
from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from vitral.errors import WeightsError
from vitral.weights.formats.format import Raw

HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.")  # beside the tower, not in it
MASK_TOKEN = (r"embeddings\.mask_token", "stands for hidden patches in pre-training")

# Inside the library, since version 5, with the names that published files have.
RENAMED = (
    (r"^layers\.", "encoder.layer."),
    (r"\battention\.q_proj\.", "attention.attention.query."),
    (r"\battention\.k_proj\.", "attention.attention.key."),
    (r"\battention\.v_proj\.", "attention.attention.value."),
    (r"\battention\.o_proj\.", "attention.output.dense."),
)
RENAMED_MLP = ((r"\bmlp\.fc1\.", "intermediate.dense."), (r"\bmlp\.fc2\.", "output.dense."))


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


class Found(NamedTuple):
    """The tensors of a file by short names, and the names of those that are of no use, each with the reason."""

    tensors: dict[str, Tensor]
    dropped: dict[str, str]


def sorted_out(raw: Raw, names: Names) -> Found:
    """What is of use in a file, and what is not."""
    found = Found({}, {})
    origins: dict[str, str] = {}
    for name, tensor in raw.tensors.items():
        short = names.short(name)
        if reason := names.reason(short):
            found.dropped[name] = reason
        elif short in origins:
            what = f"holds the same tensor twice, as {origins[short]} and as {name}"
            remedy = "give a file with one of them"
            raise WeightsError(what, code="weights.duplicate_tensor", where=str(raw.where), remedy=remedy)
        else:
            origins[short], found.tensors[short] = name, tensor
    return found


def in_whole(tensors: Mapping[str, Tensor], before: str) -> dict[str, Tensor]:
    """The tensors by the names that they have in a whole model, whose tower has a name."""
    return {name if name.startswith(HEADS) else before + name: tensor for name, tensor in tensors.items()}
