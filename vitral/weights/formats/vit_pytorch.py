"""vit-pytorch: state dicts of `ViT` and `SimpleViT`, of any version since 0.20.

The names are those of the current version; older ones are renamed first. A file does not record the number of heads
nor, in some cases, the patch size or the pool: settings give them.  D width, P x Q pixels a patch, C channels.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from math import isqrt
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from safetensors.torch import load_file
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import LinearHead, NoHead
from vitral.models.mlp import Mlp
from vitral.models.pool import ClassPool, MeanAllPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, SinCos2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    FileSettings,
    Format,
    ModelOutputs,
    convert_command,
    count_layers,
    numbered_classes,
    parse_positive_int,
    setting_hint,
    tensor_shape,
    unnamed_classes,
)
from vitral.weights.formats.rules import TABLE, TOKENS, Rule, affine, constant, mapped, same
from vitral.weights.formats.support import Supported

EPS = 1e-5


LAYER, STEM = "transformer.layers", "to_patch_embedding"
CHANNELS = (1, 3, 4)  # that a patch of unknown shape may have
OLDER = (  # before 1.2 a norm stood around each branch, and the last one in the head
    (r"(layers\.\d+\.0)\.fn\.", r"\1."),
    (r"(layers\.\d+\.1)\.norm\.", r"\1.net.0."),
    (r"(layers\.\d+\.1)\.fn\.net\.3\.", r"\1.net.4."),
    (r"(layers\.\d+\.1)\.fn\.net\.0\.", r"\1.net.1."),
    (r"^mlp_head\.0\.", "transformer.norm."),
    (r"^mlp_head\.1\.", "mlp_head."),
)


class Ends(NamedTuple):
    """What the two models have of their own, before and after the layers."""

    image: Size
    tokens: Tokens
    position: PositionConfig
    pool: PoolConfig
    head: str  # the name of its linear layer


class BaseVitPytorch(Format):
    """What both formats share."""

    library: ClassVar[str] = "vit-pytorch"
    package: ClassVar[str] = "vit-pytorch"
    class_name: ClassVar[str]  # in the library
    supported: ClassVar[Supported] = Supported(
        stem_norm="both", position_cls=True, even_heads=False, qkv_bias=False, gelu="erf", eps=EPS
    )

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        ckpt = ckpt._replace(tensors=current_names(ckpt.tensors))
        width = tensor_shape(ckpt, f"{STEM}.2.weight", 2)[0]
        patch, channels, mixer = self._settled(ckpt, settings, width)
        ends = self.ends(ckpt, settings, patch)
        named = f"{ends.head}.weight"
        classes = tensor_shape(ckpt, named, 2)[0] if named in ckpt.tensors else 0
        model = Vit(
            image_size=ends.image,
            channels=channels,
            width=width,
            depth=count_layers(ckpt.tensors, f"{LAYER}."),
            stem=Patches(patch=patch, norm="both" if f"{STEM}.1.weight" in ckpt.tensors else "none"),
            tokens=ends.tokens,
            position=ends.position,
            mixer=mixer,
            mlp=Mlp(ratio=tensor_shape(ckpt, f"{LAYER}.0.1.net.1.weight", 2)[0] / width, gelu="erf"),
            pool=ends.pool,
            head=LinearHead(num_classes=classes) if classes else NoHead(),
            eps=EPS,
        )
        preprocessing = Preprocessing(image_size=ends.image, decoding=Decoding(channels=channels))
        assumed = [
            "parse_positive_int images, resized and scaled to [-1, 1]: vit-pytorch has no preprocessing of its own"
        ]
        assumed += unnamed_classes(classes)
        return DetectedModel(
            self.title,
            model,
            preprocessing,
            numbered_classes(classes),
            drop_batch_dim(ckpt.tensors),
            {},
            tuple(assumed),
        )

    def ends(self, ckpt: Checkpoint, settings: FileSettings, patch: Size) -> Ends:
        """What stands before and after the layers, once nothing is missing."""
        raise NotImplementedError

    def missing(self, ckpt: Checkpoint, settings: FileSettings) -> list[str]:
        """The settings, besides those of both models, that the file does not make up for."""
        raise NotImplementedError

    def _settled(self, ckpt: Checkpoint, settings: FileSettings, width: int) -> tuple[Size, int, Attention]:
        """The patch, its channels and the mixer; or all that is to be told, in one error."""
        cut, mixer = infer_patch(ckpt, settings), infer_mixer(ckpt, settings, width)
        wanted = ["mixer.heads=N"] * (mixer is None) + ["stem.patch=HEIGHTxWIDTH"] * (cut is None)
        wanted += self.missing(ckpt, settings)
        if cut is None or mixer is None or wanted:
            message = f"a file of {self.title} does not record all of its settings"
            hint = f"tell the rest, {', '.join(wanted)}: {convert_command(ckpt, '--set A=B --set C=D')}"
            raise WeightsError(message, code="weights.missing_setting", where=ckpt.path, hint=hint)
        return (*cut, mixer)

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.mixer, Attention) and model.mixer.project != self.projects(model.mixer, model.width):
            yield f"mixer.project: {self.title} has {'no' if model.mixer.project else 'an'} output projection here"
        if not isinstance(model.head, LinearHead | NoHead):
            yield f"head: {self.title} has one linear layer, this model {model.head.kind}"

    def projects(self, mixer: Attention, width: int) -> bool:
        """Whether the library's attention with these heads has an output projection."""
        raise NotImplementedError

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}", f"stem.patch={model.stem.patch}", f"channels={model.channels}")

    def import_library(self, model: Vit) -> Any:
        return getattr(import_module("vit_pytorch"), self.class_name)

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        config = bundle.model
        assert isinstance(config, Vit)
        model = code(**self.arguments(config)).eval()
        model.load_state_dict(load_file(folder / "model.safetensors"))
        kept: list[Tensor] = []
        model.transformer.register_forward_hook(lambda _part, _given, tokens: kept.append(tokens))

        @torch.no_grad()
        def answers(images: Tensor) -> ModelOutputs:
            found = model(images)
            return ModelOutputs(kept.pop(), None if isinstance(config.head, NoHead) else found)

        return answers

    def arguments(self, config: Vit) -> dict[str, Any]:
        """What the library builds such a model from."""
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

    name: ClassVar[str] = "vit-pytorch"
    title: ClassVar[str] = "vit-pytorch's ViT"
    class_name: ClassVar[str] = "ViT"

    def matches(self, ckpt: Checkpoint) -> bool:
        return _plain(ckpt) and {"cls_token", "pos_embedding"} <= ckpt.tensors.keys()

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        if "mlp_head.0.weight" in ckpt.tensors and settings.get("pool") == "mean_all":
            message = "the mean of all tokens is normalized in the head, mlp_head.0, which no model here does"
            hint = "give one that reads its class token: pool=cls"
            raise WeightsError(message, code="weights.unsupported", where=ckpt.path, hint=hint)
        return super().detect(ckpt, settings)

    def missing(self, ckpt: Checkpoint, settings: FileSettings) -> list[str]:
        # In older versions the class token is always there, whether it is read or not.
        known = ckpt.tensors["cls_token"].ndim == 2 or settings.get("pool") in {"cls", "mean_all"}
        return [] if known else ["pool=cls, or pool=mean_all for what is called mean there"]

    def ends(self, ckpt: Checkpoint, settings: FileSettings, patch: Size) -> Ends:
        plain = ckpt._replace(tensors=drop_batch_dim(ckpt.tensors))
        cls = tensor_shape(plain, "cls_token", 2)[0] if ckpt.tensors["cls_token"].numel() else 0
        image, _ = settings.infer_image_size(tensor_shape(plain, "pos_embedding", 2)[0], [cls], patch, ckpt)
        pool = MeanAllPool() if settings.get("pool") == "mean_all" else ClassPool() if cls else MeanPool()
        return Ends(image, Tokens(cls=bool(cls)), Learned1d(cls=bool(cls)), pool, "mlp_head")

    def projects(self, mixer: Attention, width: int) -> bool:
        return mixer.heads > 1 or mixer.head_width_for(width) != width

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        plain_mean = isinstance(model.pool, MeanPool) and model.pool.norm == "before"
        if not (isinstance(model.pool, ClassPool) if model.tokens.cls else plain_mean):
            yield f"pool: {self.title} pools the class token, or the mean where there is none"

    def arguments(self, config: Vit) -> dict[str, Any]:
        return super().arguments(config) | {"pool": "cls" if config.tokens.cls else "mean"}

    def rules(self, model: Vit) -> list[Rule]:
        assert isinstance(model.mixer, Attention)
        cls = same(TOKENS, "cls_token") if model.tokens.cls else _empty("cls_token", model.width)
        table = mapped(TABLE, "pos_embedding", lambda found: found[None], lambda own: own[0])
        rules = [*stem_rules(model), cls, table]
        for layer in range(model.depth):
            rules += block_rules(layer, "1.net.4")
            if model.mixer.project:
                rules += affine(f"blocks.{layer}.mixer.project", f"{LAYER}.{layer}.0.to_out.0")
        rules += affine("norm", "transformer.norm")
        return rules + (affine("head.linear", "mlp_head") if isinstance(model.head, LinearHead) else [])


class SimpleVit(BaseVitPytorch):
    """`SimpleViT`: fixed sines, the mean, no biases in attention."""

    name: ClassVar[str] = "simple-vit"
    title: ClassVar[str] = "vit-pytorch's SimpleViT"
    class_name: ClassVar[str] = "SimpleViT"
    supported: ClassVar[Supported] = BaseVitPytorch.supported._replace(positions=("sincos2d",))

    def matches(self, ckpt: Checkpoint) -> bool:
        head = {"linear_head.weight", "linear_head.1.weight"} & ckpt.tensors.keys()
        return _plain(ckpt) and bool(head) and "pos_embedding" not in ckpt.tensors

    def missing(self, ckpt: Checkpoint, settings: FileSettings) -> list[str]:
        return [] if settings.get("image_size") else ["image_size=HEIGHTxWIDTH"]

    def ends(self, ckpt: Checkpoint, settings: FileSettings, patch: Size) -> Ends:
        early = "linear_head.0.weight" in ckpt.tensors  # the mean was normalized, not the tokens
        pool = MeanPool(norm="after" if early else "before")
        head = "linear_head.1" if early else "linear_head"
        return Ends(Size.parse(settings.get("image_size")), Tokens(cls=False), SinCos2d(), pool, head)

    def projects(self, mixer: Attention, width: int) -> bool:
        return True

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if model.tokens.cls or not isinstance(model.pool, MeanPool) or model.pool.norm != "before":
            yield f"pool: {self.title} has no class token, and the mean of the normed patches"
        if isinstance(model.head, NoHead):
            yield f"head: {self.title} always has one"

    def rules(self, model: Vit) -> list[Rule]:
        rules = stem_rules(model)
        for layer in range(model.depth):
            rules += block_rules(layer, "1.net.3")
            ours = f"blocks.{layer}.mixer.project"
            rules += affine(ours, f"{LAYER}.{layer}.0.to_out", bias=False)
            rules += [constant(f"{ours}.bias", [model.width], 0.0, "the bias of attention's output")]
        if model.pool.normalizes():
            return [*rules, *affine("pool.norm", "linear_head.0"), *affine("head.linear", "linear_head.1")]
        return [*rules, *affine("norm", "transformer.norm"), *affine("head.linear", "linear_head")]


def stem_rules(model: Vit) -> list[Rule]:
    """The map of the patches, whose channels are innermost there, and the norms around it."""
    stem = model.stem
    assert isinstance(stem, Patches)
    rules = [_pixels("stem.project.weight", f"{STEM}.2.weight", stem.patch)]
    rules += [same("stem.project.bias", f"{STEM}.2.bias")]
    if stem.norm == "both":
        rules += [_pixels(f"stem.before.{part}", f"{STEM}.1.{part}", stem.patch) for part in ("weight", "bias")]
        rules += affine("stem.after", f"{STEM}.3")
    return rules


def block_rules(layer: int, contract: str) -> list[Rule]:
    """One layer without its output projection."""
    ours, theirs = f"blocks.{layer}", f"{LAYER}.{layer}"
    rules = [*affine(f"{ours}.mixer_norm", f"{theirs}.0.norm"), *affine(f"{ours}.mlp_norm", f"{theirs}.1.net.0")]
    rules += [same(f"{ours}.mixer.heads.qkv.weight", f"{theirs}.0.to_qkv.weight")]
    rules += affine(f"{ours}.mlp.expand", f"{theirs}.1.net.1")
    return rules + affine(f"{ours}.mlp.contract", f"{theirs}.{contract}")


def current_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors by the names that today's version has."""
    rules = OLDER if f"{STEM}.2.weight" in tensors else (*OLDER, (rf"^{STEM}\.1\.", f"{STEM}.2."))

    def named(name: str) -> str:
        for pattern, replacement in rules:
            name = re.sub(pattern, replacement, name)
        return name

    return {named(name): tensor for name, tensor in tensors.items()}


def drop_batch_dim(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tokens and positions (rows, D), which had a dimension of one in front in older versions."""
    return {name: found[0] if found.ndim == 3 and len(found) == 1 else found for name, found in tensors.items()}


def infer_patch(ckpt: Checkpoint, settings: FileSettings) -> tuple[Size, int] | None:
    """The patch and its channels, if they are told, or if only one square patch has so many numbers."""
    pixels = tensor_shape(ckpt, f"{STEM}.2.weight", 2)[1]
    channels = [parse_positive_int(told, "channels")] if (told := settings.get("channels")) else list(CHANNELS)
    if told := settings.get("stem.patch"):
        patch = Size.parse(told)
        if pixels % (patch.height * patch.width):
            message = f"a patch has {pixels} numbers, which are not so many channels of {patch} pixels"
            hint = setting_hint(ckpt, "stem.patch=HEIGHTxWIDTH")
            raise WeightsError(message, code="weights.bad_setting", where=ckpt.path, hint=hint)
        return patch, pixels // (patch.height * patch.width)
    squares = [(isqrt(pixels // each), each) for each in channels]
    found = [(Size(side, side), each) for side, each in squares if side * side * each == pixels]
    return found[0] if len(found) == 1 else None


def infer_mixer(ckpt: Checkpoint, settings: FileSettings, width: int) -> Attention | None:
    """The attention, if its heads are told, or if it has no output projection, which one head alone does without."""
    inner = tensor_shape(ckpt, f"{LAYER}.0.0.to_qkv.weight", 2)[0] // 3
    project = any(name.startswith(f"{LAYER}.0.0.to_out.") for name in ckpt.tensors)
    told, wide = settings.get("mixer.heads"), settings.get("mixer.head_width")
    if not told and not wide and project:
        return None
    heads = (
        parse_positive_int(told, "mixer.heads")
        if told
        else inner // parse_positive_int(wide, "mixer.head_width")
        if wide
        else 1
    )
    if not heads or inner % heads:
        message = f"{inner} numbers for queries do not divide into {heads} heads"
        hint = "tell their right number: mixer.heads=N"
        raise WeightsError(message, code="weights.bad_setting", where=ckpt.path, hint=hint)
    return Attention(heads=heads, head_width=inner // heads, qkv_bias=False, project=project)


def _plain(ckpt: Checkpoint) -> bool:
    names = {f"{LAYER}.0.0.to_qkv.weight", f"{LAYER}.0.0.fn.to_qkv.weight"}
    return f"{STEM}.1.weight" in ckpt.tensors and bool(names & ckpt.tensors.keys())


def _pixels(ours: str, theirs: str, patch: Size) -> Rule:
    return mapped(
        ours,
        theirs,
        lambda found: found.unflatten(-1, (*patch, -1)).movedim(-1, -3).flatten(-3),  # (..., C P Q)
        lambda own: own.unflatten(-1, (-1, *patch)).movedim(-3, -1).flatten(-3),  # (..., P Q C)
    )


def _empty(theirs: str, width: int) -> Rule:
    """A tensor of theirs without a row."""
    return Rule((), (theirs,), lambda found: [], lambda own: [torch.empty(0, width)])
