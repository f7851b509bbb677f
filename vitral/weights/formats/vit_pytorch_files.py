"""What vit-pytorch's two plain models can hold, and vit-pytorch itself where it is installed."""

from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitral.model.attention import Attention
from vitral.model.block import NoScale, PreNorm
from vitral.model.head import LinearHead, NoHead
from vitral.model.mlp import Mlp
from vitral.model.patches import Patches
from vitral.model.pool import ClassPool, MeanPool
from vitral.model.position import Learned1d, SinCos2d
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Answers, Format

EPS = 1e-5


class VitPytorchFiles(Format):
    """The writing half of both formats."""

    library: ClassVar[str] = "vit-pytorch"
    package: ClassVar[str] = "vit-pytorch"
    class_name: ClassVar[str]  # in the library

    def without_counterpart(self, bundle: Bundle) -> Iterator[str]:
        model, theirs = bundle.model, f"vit-pytorch's {self.class_name}"
        if not isinstance(model, Vit):
            yield "kind: vit-pytorch has no such ResNet"
            return
        if not isinstance(model.stem, Patches) or model.stem.norm != "both" or not model.stem.bias:
            yield f"stem: {theirs} maps patches with a bias, and a norm before and after it"
        if model.tokens.registers or model.tokens.norm:
            yield f"tokens: {theirs} has no registers, and no norm before the first layer"
        if not isinstance(model.block, PreNorm) or not isinstance(model.block.scale, NoScale):
            yield f"block: {theirs} normalises before each branch, and scales none"
        if not isinstance(model.mixer, Attention) or model.mixer.qkv_bias or model.mixer.qk_norm:
            yield f"mixer: {theirs} has attention over all tokens, without biases or norms for queries, keys and values"
        elif model.mixer.project != self.projects(model.mixer, model.width):
            yield f"mixer.project: {theirs} has {'no' if model.mixer.project else 'an'} output projection here"
        if not isinstance(model.mlp, Mlp) or model.mlp.gelu != "erf":
            yield f"mlp: {theirs} has two layers with the erf form of GELU"
        yield from self.unlike_at_the_ends(model, theirs)
        if model.eps != EPS:
            yield f"eps: vit-pytorch's norms have {EPS:g}, this model {model.eps:g}"

    def projects(self, mixer: Attention, width: int) -> bool:
        """Whether the library's attention with these heads has an output projection."""
        raise NotImplementedError

    def unlike_at_the_ends(self, model: Vit, theirs: str) -> Iterator[str]:
        """What has no counterpart in the positions, the pool and the head."""
        raise NotImplementedError

    def hints(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}", f"stem.patch={model.stem.patch}", f"channels={model.channels}")

    def code(self, model: Vit) -> Any:
        return getattr(import_module("vit_pytorch"), self.class_name)

    def reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], Answers]:
        config = bundle.model
        assert isinstance(config, Vit)
        model = code(**self.arguments(config)).eval()
        model.load_state_dict(load_file(folder / "model.safetensors"))
        kept: list[Tensor] = []
        model.transformer.register_forward_hook(lambda _part, _given, tokens: kept.append(tokens))

        @torch.no_grad()
        def answers(images: Tensor) -> Answers:
            found = model(images)
            return Answers(kept.pop(), None if isinstance(config.head, NoHead) else found)

        return answers

    def arguments(self, config: Vit) -> dict[str, Any]:
        """What the library builds such a model from."""
        assert isinstance(config.mixer, Attention)
        return {
            "image_size": tuple(config.image),
            "patch_size": tuple(config.stem.patch),
            "num_classes": 0 if isinstance(config.head, NoHead) else config.head.classes,
            "dim": config.width,
            "depth": config.depth,
            "heads": config.mixer.heads,
            "dim_head": config.mixer.width_of_head(config.width),
            "mlp_dim": config.mlp.hidden(config.width),
            "channels": config.channels,
        }


class VitFiles(VitPytorchFiles):
    """What `ViT` can hold."""

    name: ClassVar[str] = "vit-pytorch"
    class_name: ClassVar[str] = "ViT"

    def projects(self, mixer: Attention, width: int) -> bool:
        return mixer.heads > 1 or mixer.width_of_head(width) != width

    def unlike_at_the_ends(self, model: Vit, theirs: str) -> Iterator[str]:
        position = model.position
        if not isinstance(position, Learned1d) or position.where != "stem" or (model.tokens.cls and not position.cls):
            yield f"position: {theirs} has one learned table at the stem, with a row for the class token"
        plain_mean = isinstance(model.pool, MeanPool) and model.pool.norm == "before"
        if not (isinstance(model.pool, ClassPool) if model.tokens.cls else plain_mean):
            yield f"pool: {theirs} reads the class token, or the mean where there is none"
        if not isinstance(model.head, LinearHead | NoHead):
            yield f"head: {theirs} has one linear layer, this model {model.head.kind}"

    def arguments(self, config: Vit) -> dict[str, Any]:
        return super().arguments(config) | {"pool": "cls" if config.tokens.cls else "mean"}


class SimpleVitFiles(VitPytorchFiles):
    """What `SimpleViT` can hold."""

    name: ClassVar[str] = "simple-vit"
    class_name: ClassVar[str] = "SimpleViT"

    def projects(self, mixer: Attention, width: int) -> bool:
        return True

    def unlike_at_the_ends(self, model: Vit, theirs: str) -> Iterator[str]:
        if not isinstance(model.position, SinCos2d):
            yield f"position: {theirs} has fixed sines over columns and rows, this model {model.position.kind}"
        if model.tokens.cls or not isinstance(model.pool, MeanPool) or model.pool.norm != "before":
            yield f"pool: {theirs} has no class token, and the mean of the normed patches"
        if not isinstance(model.head, LinearHead):
            yield f"head: {theirs} has one linear layer, this model {model.head.kind}"
