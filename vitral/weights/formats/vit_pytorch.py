"""vit-pytorch: state dicts of `ViT` and `SimpleViT`, also with registers, of any version since 0.2.2.

The names are those of the current version; older ones are renamed first. A file does not record the number of heads
nor, in some cases, the patch size, the pool or the scale of attention: settings give them. For smaller images the
library takes the first rows of its positions.  D width, P x Q pixels a patch, C channels.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from math import isqrt
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import HeadConfig, LinearHead, NoHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.pool import ClassPool, MeanAllPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, SinCos2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    ANY_NUMBER,
    PLAIN,
    Checkpoint,
    DetectedModel,
    Format,
    OracleFiles,
    assumed_preprocessing,
    count_layers,
    parse_positive_int,
)
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, constant, mapped, unsqueezed
from vitral.weights.oracles.oracle import OracleRequest

LAYER, EMBED = "transformer.layers.*", "to_patch_embedding"
FIRST = LAYER.replace("*", "0")
REGISTERS = "register_tokens"
EPS = 1e-5
HEADS = ("mlp_head.weight", "linear_head.weight", "linear_head.1.weight")
FIRST_STEM, NORM_IN_HEAD, HIDDEN_HEAD = "patch_to_embedding.weight", "mlp_head.0.weight", "mlp_head.4.weight"
CHANNELS = (1, 3, 4)  # that a patch of unknown shape may have
OLDER = (  # before 1.2 a norm was wrapped around each branch, and before 0.10 a residual; the last one was in the head
    (r"^patch_to_embedding\.", f"{EMBED}.1."),
    (r"\.ffnet\.", ".net."),  # a copy of the library that many have
    (r"(layers\.\d+\.[01])\.fn\.(norm|fn)\.", r"\1.\2."),
    (r"(layers\.\d+\.0)\.fn\.", r"\1."),
    (r"(layers\.\d+\.1)\.norm\.", r"\1.net.0."),
    (r"(layers\.\d+\.1)\.fn\.net\.3\.", r"\1.net.4."),
    (r"(layers\.\d+\.1)\.fn\.net\.0\.", r"\1.net.1."),
    (r"^mlp_head\.0\.", "transformer.norm."),
)


class BaseVitPytorch(Format):
    """What both formats share."""

    library = package = "vit-pytorch"
    class_name: ClassVar[str]  # in the library
    names: ClassVar[Names] = {
        "stem.project": f"{EMBED}.2",
        "stem.before": f"{EMBED}.1",
        "stem.after": f"{EMBED}.3",
        "blocks.*.mixer_norm": f"{LAYER}.0.norm",
        "blocks.*.mixer.heads.qkv": f"{LAYER}.0.to_qkv",
        "blocks.*.mlp_norm": f"{LAYER}.1.net.0",
        "blocks.*.mlp.expand": f"{LAYER}.1.net.1",
        "norm": "transformer.norm",
    }
    supported = PLAIN | {
        "stem.norm": ("both",),
        "position.cls": (True,),
        "mixer.qkv_bias": (False,),
        "mlp.activation": ("gelu",),
        "head.kind": ("linear", "none"),
        "eps": (EPS,),
    }
    even_heads = False

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        names = ckpt.tensors.keys()
        ckpt = ckpt._replace(tensors=current_names(ckpt.tensors))
        width = ckpt.shape(f"{EMBED}.2.weight", 2)[0]
        patch, channels, mixer = self._required(ckpt, width, names)
        model = Vit(
            **self.ends(ckpt, patch, names),
            channels=channels,
            width=width,
            depth=count_layers(ckpt.tensors, LAYER.partition("*")[0]),
            stem=Patches(patch=patch, norm="both" if f"{EMBED}.1.weight" in ckpt.tensors else "none"),
            mixer=mixer,
            mlp=Mlp(ratio=ckpt.shape(f"{FIRST}.1.net.1.weight", 2)[0] / width, activation="gelu"),
            head=infer_head(ckpt),
            eps=EPS,
        )
        assumed = "whole images, resized and scaled to [-1, 1]: vit-pytorch has no preprocessing of its own"
        ckpt = ckpt._replace(tensors=drop_batch_dim(ckpt.tensors))
        return self.detected(ckpt, model, assumed_preprocessing(model.image_size, channels), (assumed,))

    def ends(self, ckpt: Checkpoint, patch: Size, names: Collection[str]) -> dict[str, Any]:
        """The image size, tokens, position and pool of the model, once no setting is missing; names as in the file."""
        raise NotImplementedError

    def missing(self, ckpt: Checkpoint, names: Collection[str]) -> list[str]:
        """The settings, besides those of both models, that neither the file nor the user gives."""
        raise NotImplementedError

    def _required(self, ckpt: Checkpoint, width: int, names: Collection[str]) -> tuple[Size, int, Attention]:
        """The patch, its channels and the mixer; one error names all missing settings."""
        patch, mixer = infer_patch(ckpt), infer_mixer(ckpt, width)
        wanted = ["mixer.heads=N"] * (mixer is None) + ["stem.patch=HEIGHTxWIDTH"] * (patch is None)
        wanted += self.missing(ckpt, names)
        if FIRST_STEM in names:
            if HIDDEN_HEAD in names and mixer:  # before 0.3
                mixer = mixer.model_copy(update={"scale": width**-0.5})
            elif not ckpt.setting("mixer.scale"):
                wanted += [f"mixer.scale={width**-0.5:.8g} if written before version 0.6.7, or mixer.scale='1/sqrt(d)'"]
        if patch is None or mixer is None or wanted:
            message = f"a file of {self.title} does not record all of its settings"
            pixels = ckpt.shape(f"{EMBED}.2.weight", 2)[1]
            square = patch is not None or ckpt.setting("channels")
            shown = "" if square else f": {pixels} values in a patch make no square of 1, 3 or 4 channels"
            if "cls_token" not in names or ckpt.tensors["cls_token"].ndim == 3:  # as in the models of videos
                message += f", unless it is vit_3d or simple_vit_3d, a model of videos, which is not read here{shown}"
            hint = f"give the others, {', '.join(wanted)}: {ckpt.convert_command('--set A=B --set C=D')}"
            raise ckpt.error(message, "weights.missing_setting", hint)
        return (*patch, mixer)

    def special_rules(self, model: Vit) -> list[Rule]:
        """The patch embedding and the norm before it, whose channels come last in theirs."""
        ours = ["stem.project.weight"]
        if isinstance(model.stem, Patches) and model.stem.norm == "both":
            ours += ["stem.before.weight", "stem.before.bias"]
        theirs = [name.replace("stem.project", f"{EMBED}.2").replace("stem.before", f"{EMBED}.1") for name in ours]
        return [_pixels(own, other, model.stem.patch) for own, other in zip(ours, theirs, strict=True)]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.mixer, Attention) and model.mixer.project != self.projects(model.mixer, model.width):
            yield f"mixer.project: {self.title} has {'no' if model.mixer.project else 'an'} output projection here"

    def projects(self, mixer: Attention, width: int) -> bool:
        """Whether the library's attention with these heads has an output projection."""
        return True

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}", f"stem.patch={model.stem.patch}", f"channels={model.channels}")

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        module = "vit_pytorch.simple_vit_with_register_tokens" if model.tokens.registers else "vit_pytorch"
        code = {"module": module, "class": self.class_name, "arguments": self.arguments(model)}
        return OracleRequest("vit_pytorch", code | {"file": str(files.file)})

    def arguments(self, config: Vit) -> dict[str, Any]:
        """The arguments with which the library builds such a model."""
        assert isinstance(config.mixer, Attention)
        return {
            "image_size": tuple(config.image_size),
            "patch_size": tuple(config.stem.patch),
            "num_classes": 0 if isinstance(config.head, NoHead) else config.head.num_classes,
            "dim": config.width,
            "depth": config.depth,
            "heads": config.mixer.heads,
            "dim_head": config.mixer.head_width_for(config.width),
            "mlp_dim": config.mlp.hidden(config.width),
            "channels": config.channels,
        }


class VitPytorch(BaseVitPytorch):
    """`ViT`: learned positions, and a class token or the mean."""

    name = "vit-pytorch"
    title = "vit-pytorch's ViT"
    class_name = "ViT"
    names: ClassVar[Names] = {
        **BaseVitPytorch.names,
        TOKENS: "cls_token",
        "blocks.*.mixer.project": f"{LAYER}.0.to_out.0",
        "blocks.*.mlp.contract": f"{LAYER}.1.net.4",
        "head.linear": "mlp_head",
        "head.hidden": "mlp_head.1",
        "head.classifier.linear": "mlp_head.4",
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        return _plain(ckpt) and {"cls_token", "pos_embedding"} <= ckpt.tensors.keys()

    def missing(self, ckpt: Checkpoint, names: Collection[str]) -> list[str]:
        # Older versions always have the class token, whether it is read or not; the first have no other pool.
        known = ckpt.tensors["cls_token"].ndim == 2 or HIDDEN_HEAD in names
        if known or ckpt.setting("pool") in {"cls", "mean_all"}:
            return []
        return ["pool=cls, or pool=mean_all for what is called mean there"]

    def ends(self, ckpt: Checkpoint, patch: Size, names: Collection[str]) -> dict[str, Any]:
        plain = ckpt._replace(tensors=drop_batch_dim(ckpt.tensors))
        cls = plain.shape("cls_token", 2)[0] if ckpt.tensors["cls_token"].numel() else 0
        image, rows = ckpt.infer_image_size(plain.shape("pos_embedding", 2)[0], sorted({0, cls}), patch)
        pool: PoolConfig = ClassPool() if cls else MeanPool()
        if ckpt.setting("pool") == "mean_all":
            pool = MeanAllPool(norm="after" if NORM_IN_HEAD in names else "before")
        position = Learned1d(cls=rows > 0, resampling="slice")
        return {"image_size": image, "tokens": Tokens(cls=bool(cls)), "position": position, "pool": pool}

    def tensor_names(self, model: Vit) -> Names:
        early = {"pool.norm": "transformer.norm"} if model.pool.normalizes() else {}
        return {**self.names, **early}

    def projects(self, mixer: Attention, width: int) -> bool:
        return mixer.heads > 1 or mixer.head_width_for(width) != width

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        plain_mean = isinstance(model.pool, MeanPool) and model.pool.norm == "before"
        if not (isinstance(model.pool, ClassPool) if model.tokens.cls else plain_mean):
            yield f"pool: {self.title} pools the class token, or the mean where there is none"

    def arguments(self, config: Vit) -> dict[str, Any]:
        return super().arguments(config) | {"pool": "cls" if config.tokens.cls else "mean"}

    def special_rules(self, model: Vit) -> list[Rule]:
        rules = [*super().special_rules(model), unsqueezed(TABLE, "pos_embedding")]
        if not model.tokens.cls:  # theirs has no rows
            rules.append(Rule((), ("cls_token",), lambda found: [], lambda own: [torch.empty(0, model.width)]))
        return rules


class SimpleVit(BaseVitPytorch):
    """`SimpleViT`: fixed sines, the mean of the patches, no biases in attention; perhaps registers, last in theirs."""

    name = "simple-vit"
    title = "vit-pytorch's SimpleViT"
    class_name = "SimpleViT"
    names: ClassVar[Names] = {
        **BaseVitPytorch.names,
        "blocks.*.mixer.project": f"{LAYER}.0.to_out",
        "blocks.*.mlp.contract": f"{LAYER}.1.net.3",
        TOKENS: REGISTERS,
        "head.linear": "linear_head",
    }
    supported = BaseVitPytorch.supported | {
        "tokens.registers": ANY_NUMBER,
        "position.kind": ("sincos2d",),
        "head.kind": ("linear",),
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        head = {"linear_head.weight", "linear_head.1.weight"} & ckpt.tensors.keys()
        return _plain(ckpt) and bool(head) and "pos_embedding" not in ckpt.tensors

    def missing(self, ckpt: Checkpoint, names: Collection[str]) -> list[str]:
        return [] if ckpt.setting("image_size") else ["image_size=HEIGHTxWIDTH"]

    def ends(self, ckpt: Checkpoint, patch: Size, names: Collection[str]) -> dict[str, Any]:
        early = "linear_head.0.weight" in ckpt.tensors  # the mean was normalized, not the tokens
        image, pool = Size.parse(ckpt.setting("image_size")), MeanPool(norm="after" if early else "before")
        registers = ckpt.shape(REGISTERS, 2)[0] if REGISTERS in names else 0
        tokens = Tokens(cls=False, registers=registers)
        return {"image_size": image, "tokens": tokens, "position": SinCos2d(), "pool": pool}

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if model.tokens.cls or not isinstance(model.pool, MeanPool) or model.pool.norm != "before":
            yield f"pool: {self.title} has no class token, and the mean of the normed patches"

    def arguments(self, config: Vit) -> dict[str, Any]:
        count = config.tokens.registers
        return super().arguments(config) | ({"num_register_tokens": count} if count else {})

    def tensor_names(self, model: Vit) -> Names:
        early = {"pool.norm": "linear_head.0", "head.linear": "linear_head.1"} if model.pool.normalizes() else {}
        return {**self.names, **early}

    def special_rules(self, model: Vit) -> list[Rule]:
        biases = [f"blocks.{layer}.mixer.project.bias" for layer in range(model.depth)]
        fixed = [constant(bias, [model.width], 0.0, "the bias of attention's output") for bias in biases]
        return super().special_rules(model) + fixed


def current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names of the current version."""
    rules = OLDER if HIDDEN_HEAD in tensors else (*OLDER, (r"^mlp_head\.1\.", "mlp_head."))
    rules = rules if f"{EMBED}.2.weight" in tensors else (*rules, (rf"^{EMBED}\.1\.", f"{EMBED}.2."))

    def named(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return {named(name): tensor for name, tensor in tensors.items()}


def drop_batch_dim(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tokens and positions (rows, D), which have a first dimension of one in older versions."""
    return {name: found[0] if found.ndim == 3 and len(found) == 1 else found for name, found in tensors.items()}


def infer_head(ckpt: Checkpoint) -> HeadConfig:
    """The head, by its tensors; the first versions have a hidden layer."""
    if HIDDEN_HEAD in ckpt.tensors:
        classes, hidden = ckpt.shape(HIDDEN_HEAD, 2)
        return TanhHead(num_classes=classes, hidden=hidden, activation="gelu")
    head = next((name for name in HEADS if name in ckpt.tensors), "")
    return LinearHead(num_classes=ckpt.shape(head, 2)[0]) if head else NoHead()


def infer_patch(ckpt: Checkpoint) -> tuple[Size, int] | None:
    """The patch and its channels, if they are given, or if only one square patch has so many values."""
    pixels = ckpt.shape(f"{EMBED}.2.weight", 2)[1]
    channels = [parse_positive_int(given, "channels")] if (given := ckpt.setting("channels")) else list(CHANNELS)
    if given := ckpt.setting("stem.patch"):
        patch = Size.parse(given)
        if pixels % (patch.height * patch.width):
            message = f"a patch has {pixels} values, which is not a multiple of {patch} pixels"
            raise ckpt.missing_setting(message, "stem.patch=HEIGHTxWIDTH", "weights.bad_setting")
        return patch, pixels // (patch.height * patch.width)
    squares = [(isqrt(pixels // each), each) for each in channels]
    found = [(Size(side, side), each) for side, each in squares if side * side * each == pixels]
    return found[0] if len(found) == 1 else None


def infer_mixer(ckpt: Checkpoint, width: int) -> Attention | None:
    """The attention, if its heads are given, or if it has no output projection, which only a single head lacks."""
    inner = ckpt.shape(f"{FIRST}.0.to_qkv.weight", 2)[0] // 3
    project = any(name.startswith(f"{FIRST}.0.to_out.") for name in ckpt.tensors)
    heads = 1
    if given := ckpt.setting("mixer.heads"):
        heads = parse_positive_int(given, "mixer.heads")
    elif given := ckpt.setting("mixer.head_width"):
        heads = inner // parse_positive_int(given, "mixer.head_width")
    elif project:
        return None
    if not heads or inner % heads:
        message = f"a width of {inner} does not divide into {heads} heads"
        raise ckpt.missing_setting(message, "mixer.heads=N", "weights.bad_setting")
    return Attention(heads=heads, head_width=inner // heads, qkv_bias=False, project=project)


def _plain(ckpt: Checkpoint) -> bool:
    names = ckpt.tensors.keys()
    query = {f"{FIRST}.0.{wrapped}to_qkv.weight" for wrapped in ("", "fn.", "fn.fn.")}
    return bool(query & names) and bool({f"{EMBED}.1.weight", FIRST_STEM} & names)


def _pixels(ours: str, theirs: str, patch: Size) -> Rule:
    return mapped(
        ours,
        theirs,
        lambda found: found.unflatten(-1, (*patch, -1)).movedim(-1, -3).flatten(-3),  # (..., C P Q)
        lambda own: own.unflatten(-1, (-1, *patch)).movedim(-3, -1).flatten(-3),  # (..., P Q C)
    )
