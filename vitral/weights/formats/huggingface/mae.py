"""ViT-MAE: the encoder of `ViTMAEModel` and `ViTMAEForPreTraining` (arXiv 2111.06377)."""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.data.transforms.scaling import IMAGENET
from vitral.data.transforms.view import PlainResize
from vitral.model.vit import Vit
from vitral.weights.formats.huggingface.counterpart import Holds
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.names import RENAMED, RENAMED_MLP, Names
from vitral.weights.formats.huggingface.processor import Custom
from vitral.weights.formats.huggingface.shapes import Shapes
from vitral.weights.formats.huggingface.vit import DECODER, PARTS, SHAPES, UNTOLD, tower_rules
from vitral.weights.formats.rule import Rule


class HfMae(Family):
    """A ViT by its tensors; its fixed positions are a table as learned ones are."""

    name: ClassVar[str] = "hf-mae"
    title: ClassVar[str] = "Hugging Face's ViT-MAE"
    types: ClassVar[tuple[str, ...]] = ("vit_mae",)
    names: ClassVar[Names] = Names(("vit.",), RENAMED + RENAMED_MLP, (DECODER,))
    shapes: ClassVar[Shapes] = SHAPES
    untold: ClassVar[dict[str, Any]] = UNTOLD
    custom: ClassVar[Custom] = Custom(PlainResize(), IMAGENET)
    holds: ClassVar[Holds] = Holds(frozenset({("cls", "none")}))

    def known(self, names: set[str]) -> bool:
        others = {"embeddings.distillation_token", "pooler.dense.weight", "classifier.weight", "decoder.0.weight"}
        return names >= PARTS and not names & others

    def tower_rules(self, model: Vit) -> list[Rule]:
        return tower_rules(model, ["embeddings.cls_token"])

    def architecture(self, model: Vit) -> str:
        return "ViTMAEModel"

    def options(self, model: Vit) -> dict[str, Any]:
        return {"mask_ratio": 0.0}

    def ask(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
        patches = images.shape[2] * images.shape[3] // peer.config.patch_size**2
        order = torch.arange(patches).expand(len(images), -1)  # it shuffles the patches by the order of such numbers
        tokens: Tensor = peer(images, noise=order, **ways).last_hidden_state
        return tokens
