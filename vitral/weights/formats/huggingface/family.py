"""What every family of the library's Vision Transformers has in common.

A family says what its parts are; reading, writing and asking the library itself are done here.

Which models a family of the library can hold.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size, override
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.preprocessing import CENTERED, Preprocessing
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches
from vitral.models.head import LinearHead, NoHead
from vitral.models.mlp import Mlp, MlpConfig, SwiGlu
from vitral.models.pool import AttentionPool, ClassPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    CONFIG,
    PROCESSOR,
    Checkpoint,
    DetectedModel,
    FileSettings,
    Format,
    ModelOutputs,
    json_file,
    numbered_classes,
)
from vitral.weights.formats.huggingface.fields import ACTIVATIONS, Fields, Shapes
from vitral.weights.formats.huggingface.names import HEADS, Names, TowerTensors, add_prefix, sort_tensors
from vitral.weights.formats.huggingface.processor import ProcessorDefaults, processor_fields, read_processor
from vitral.weights.formats.rules import Rule, affine

ANY_NUMBER = 1_000  # registers


class Supported(NamedTuple):
    """What the models of a family are made of."""

    answers: frozenset[tuple[str, str]]  # the kinds of pool and head that go together
    cls: bool = True
    registers: tuple[int, int] = (0, 0)  # the fewest and the most
    stem_bias: bool = True
    first_norm: bool = False
    position: str = "learned1d"
    scale: bool = False  # LayerScale
    gated: bool = False  # whether an MLP may be
    free_bias: bool = True  # whether queries, keys and values may have none
    rectangles: bool = False  # whether images and patches may be no squares


def unsupported_parts(bundle: Bundle, holds: Supported, who: str) -> Iterator[str]:
    """What a family cannot hold of a model, each as a sentence that begins with the field."""
    model = bundle.model
    if not isinstance(model, Vit):
        yield f"kind: {who} is a Vision Transformer, this model a {model.kind}"
        return
    yield from _stem_gaps(model, holds, who)
    yield from _layer_gaps(model, holds, who)
    if (model.pool.kind, model.head.kind) not in holds.answers:
        known = " or ".join(f"{pool} with {head}" for pool, head in sorted(holds.answers))
        yield f"head: {who} has pool {known}, this model {model.pool.kind} with {model.head.kind}"
    if isinstance(model.pool, MeanPool) and model.pool.normalizes():
        yield f"pool.norm: {who} normalizes before the mean"
    if isinstance(model.pool, AttentionPool) and model.pool.heads not in ("mixer", model.context().heads):
        yield f"pool.heads: {who} has as many as its mixer"
    image = bundle.preprocessing.image_size
    if isinstance(bundle.preprocessing.crop, CenterCrop) and image.height != image.width:
        yield f"preprocessing.crop: the library crops squares out of resized pictures, this model needs {image}"


def _stem_gaps(model: Vit, holds: Supported, who: str) -> Iterator[str]:
    stem, tokens = model.stem, model.tokens
    if not isinstance(stem, Patches) or stem.norm != "none":
        yield f"stem: {who} has patches through one map and no norm"
    elif stem.bias != holds.stem_bias:
        yield f"stem.bias: {who} has {'a bias' if holds.stem_bias else 'no bias'}"
    elif not holds.rectangles and (len(set(model.image_size)) > 1 or len(set(stem.patch)) > 1):
        yield f"image_size: {who} has squares, this model {model.image_size} in {stem.patch}"
    if tokens.cls != holds.cls:
        yield f"tokens.cls: {who} has {'a class token' if holds.cls else 'no class token'}"
    fewest, most = holds.registers
    if not fewest <= tokens.registers <= most:
        count = str(fewest) if fewest == most else f"{fewest} or more"
        yield f"tokens.registers: {who} has {count}, this model {tokens.registers}"
    if tokens.norm != holds.first_norm:
        yield f"tokens.norm: {who} has {'a' if holds.first_norm else 'no'} norm before the first layer"
    if model.position.kind != holds.position:
        yield f"position: {who} has {holds.position}, this model {model.position.kind}"
    elif isinstance(model.position, Learned1d):
        if model.position.where != "stem":
            yield f"position.where: {who} adds it at the stem"
        if holds.cls and not model.position.cls:
            yield f"position.cls: {who}'s table has a row for the class token"


def _layer_gaps(model: Vit, holds: Supported, who: str) -> Iterator[str]:
    if not isinstance(model.block, PreNorm):
        yield f"block: {who} normalizes before each branch"
    if isinstance(model.block.scale, LayerScale) != holds.scale:
        yield f"block.scale: {who} has {'LayerScale' if holds.scale else 'none'}"
    mixer = model.mixer
    if not isinstance(mixer, Attention):
        yield f"mixer: {who} has attention over all tokens, this model {mixer.kind}"
    else:
        if mixer.head_width_for(model.width) * mixer.heads != model.width or not mixer.project:
            yield f"mixer: {who}'s heads share the width evenly, and are projected"
        if mixer.qk_norm:
            yield f"mixer.qk_norm: {who} has none"
        if not mixer.qkv_bias and not holds.free_bias:
            yield f"mixer.qkv_bias: {who}'s is always there"
    if not isinstance(model.mlp, Mlp) and not holds.gated:
        yield f"mlp: {who} has two layers with GELU between, this model {model.mlp.kind}"


DOWNLOAD_AGAIN = "get it again from where the weights came from"
ADD_CONFIG = "put the model's config.json beside it"


class Family(Format):
    """A kind of model of the library, known by the `model_type` in its config.json or else by its names."""

    library: ClassVar[str] = "huggingface"
    package: ClassVar[str] = "transformers"
    title: ClassVar[str]
    types: ClassVar[tuple[str, ...]]  # model_type in config.json
    names: ClassVar[Names]
    shapes: ClassVar[Shapes]  # where the tensors show what a missing config.json would tell
    untold: ClassVar[Mapping[str, Any]]  # fields that no tensor shows, as all published models have them
    custom: ClassVar[ProcessorDefaults]
    holds: ClassVar[Supported]
    resizes: ClassVar[bool] = True  # whether its code has to be told that an image has another size than its own

    def claims(self, raw: Checkpoint) -> bool:
        if "model_type" in raw.config:
            return raw.config["model_type"] in self.types
        return self.known({self.names.short(name) for name in raw.tensors})

    def known(self, names: set[str]) -> bool:
        """Whether short names are of this family and no other."""
        raise NotImplementedError

    def recognize(self, raw: Checkpoint, hints: FileSettings) -> DetectedModel:
        found = self.prepared(sort_tensors(raw, self.names))
        fields, assumed = self.fields(raw, found, hints)
        try:
            model = self.model(self.tower(fields), found)
        except ConfigError as error:
            raise WeightsError(str(error), code="weights.bad_config", where=fields.where, hint=fields.hint) from None
        if raw.config:
            _refuse_contradiction(model, hints, fields)
        seen, more = self.preprocessing(raw, model)
        classes = model.head.num_classes if isinstance(model.head, LinearHead) else 0
        named = fields.labels(classes) if classes else ()
        if named is None:
            named, more = numbered_classes(classes), (*more, f"its {classes:,} classes have no names: numbered")
        tensors = add_prefix(found.tensors, self.before(model))
        return DetectedModel(self.title, model, seen, named, tensors, found.dropped, (*assumed, *more))

    def prepared(self, found: TowerTensors) -> TowerTensors:
        """The tensors once those are brought together, or set aside, of which a name alone does not tell."""
        return found

    def fields(self, raw: Checkpoint, found: TowerTensors, hints: FileSettings) -> tuple[Fields, tuple[str, ...]]:
        """What config.json tells; without one, what the tensors do, and what had to be assumed."""
        if not raw.config:
            short = raw._replace(tensors=found.tensors)
            data = {**self.shown(short), **self.shapes.fields(short, hints), **self.untold}
            words = ", ".join(f"{name} {value}" for name, value in self.untold.items())
            heads = f"{data['num_attention_heads']} heads"
            return Fields(data, str(raw.where), ADD_CONFIG), (f"there is no config.json: {heads}, {words}",)
        fields = Fields(raw.config, str(raw.where.parent / CONFIG), DOWNLOAD_AGAIN)
        if fields.given("model_type") not in self.types:
            raise fields.wrong("model_type", format_choices(self.types))
        return fields, ()

    def shown(self, raw: Checkpoint) -> dict[str, Any]:
        """More fields that the tensors, by short names, show where there is no config.json."""
        return {}

    def tower(self, fields: Fields) -> Fields:
        """The fields that describe the Vision Transformer, in a file that may describe more."""
        return fields

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        width, patch = fields.whole("hidden_size"), fields.size("patch_size")
        return Vit(
            image_size=_covered(fields.size("image_size"), patch),
            channels=fields.whole("num_channels"),
            width=width,
            depth=fields.whole("num_hidden_layers"),
            stem=Patches(patch=patch, bias=self.holds.stem_bias),
            tokens=self.tokens(fields),
            position=self.position(fields),
            block=PreNorm(scale=LayerScale() if self.holds.scale else NoScale()),
            mixer=Attention(heads=_heads(fields, width), qkv_bias=self.qkv_bias(fields)),
            mlp=self.mlp(fields, width),
            pool=self.pool(found),
            head=self.head(found),
            eps=fields.number("layer_norm_eps"),
        )

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(cls=self.holds.cls, norm=self.holds.first_norm)

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(cls=self.holds.cls, resampling="bicubic")

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("qkv_bias", True) or not self.holds.free_bias

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        return Mlp(ratio=fields.whole("intermediate_size") / width, gelu=fields.gelu())

    def pool(self, found: TowerTensors) -> PoolConfig:
        return ClassPool()

    def head(self, found: TowerTensors) -> LinearHead | NoHead:
        heads = ((name, tensor) for name, tensor in found.tensors.items() if name.startswith(HEADS))
        name, head = next(heads, ("", None))
        if head is None:
            return NoHead()
        if not head.ndim or not len(head):
            message = f"{name} has shape {tuple(head.shape)}, expected a row for each class"
            raise WeightsError(message, code="weights.shape_mismatch")
        return LinearHead(num_classes=len(head))

    def preprocessing(self, raw: Checkpoint, model: Vit) -> tuple[Preprocessing, tuple[str, ...]]:
        """What is done to images, and what had to be assumed."""
        if not raw.processor:
            scaling = self.custom.scaling if len(self.custom.scaling.mean) in {1, model.channels} else CENTERED
            decoding = Decoding(channels=model.channels)
            own = Preprocessing(
                image_size=model.image_size, decoding=decoding, crop=self.custom.view, normalize=scaling
            )
            mean = ", ".join(f"{number:g}" for number in scaling.mean)
            return own, (f"there is no {PROCESSOR}: images of {model.image_size}, {own.crop.kind} view, mean {mean}",)
        fields = Fields(raw.processor, str(raw.where.parent / PROCESSOR), DOWNLOAD_AGAIN)
        made, assumed = read_processor(fields, model.channels, self.custom)
        assert isinstance(model.stem, Patches)
        covered = _covered(made.image_size, model.stem.patch)
        if covered != made.image_size:
            if not all(covered):
                raise fields.wrong("size", f"no less than a patch, {model.stem.patch}")
            assumed += (
                f"images of {covered}; the library leaves out what its patches do not cover of {made.image_size}",
            )
        return made.model_copy(update={"image_size": covered}), assumed

    def before(self, model: Vit) -> str:
        """What stands before the tower's names in a file of such a model."""
        return "" if isinstance(model.head, NoHead) else self.names.towers[0]

    def tower_rules(self, model: Vit) -> list[Rule]:
        """The rules of the tower by itself."""
        raise NotImplementedError

    def head_rules(self, model: Vit) -> list[Rule]:
        return affine("head.linear", "classifier")

    def rules(self, model: Vit) -> list[Rule]:
        before = self.before(model)
        rules = [replace(rule, theirs=tuple(before + name for name in rule.theirs)) for rule in self.tower_rules(model)]
        return rules + (self.head_rules(model) if isinstance(model.head, LinearHead) else [])

    def without_counterpart(self, bundle: Bundle) -> Iterator[str]:
        return unsupported_parts(bundle, self.holds, self.title)

    def architecture(self, model: Vit) -> str:
        """The class of the library that reads such a model."""
        raise NotImplementedError

    def described(self, model: Vit) -> dict[str, Any]:
        """The fields of config.json, save those that every model has."""
        return {"model_type": self.types[0]} | common_fields(model)

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        config = {"architectures": [self.architecture(bundle.model)]} | self.described(bundle.model)
        if bundle.classes:
            config["id2label"] = dict(enumerate(bundle.classes))
            config["label2id"] = {name: label for label, name in enumerate(bundle.classes)}
        notes = {CONFIG: json_file(config), PROCESSOR: json_file(processor_fields(bundle.preprocessing))}
        return super().files(bundle, tensors) | notes

    def code(self, model: Vit) -> Any:
        return getattr(import_module("transformers"), self.architecture(model))

    def reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        model = bundle.model
        assert isinstance(model, Vit)
        peer = code.from_pretrained(folder, **self.options(model)).eval()

        @torch.no_grad()
        def answers(images: Tensor) -> ModelOutputs:
            other = self.resizes and Size(*images.shape[2:]) != model.image_size
            ways = {"interpolate_pos_encoding": True} if other else {}
            logits = None if isinstance(model.head, NoHead) else peer(images, **ways).logits
            return ModelOutputs(self.ask(peer, images, ways), logits)

        return answers

    def options(self, model: Vit) -> dict[str, Any]:
        """What the library has to be told beside the folder."""
        return {}

    def ask(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
        """The library's tokens after the last norm, (B, L, D)."""
        inside = [getattr(peer, name.rstrip(".")) for name in self.names.towers if hasattr(peer, name.rstrip("."))]
        tokens: Tensor = (inside or [peer])[0](images, **ways).last_hidden_state
        return tokens


def common_fields(model: Vit) -> dict[str, Any]:
    """What every config.json has of a Vision Transformer."""
    assert isinstance(model.stem, Patches)
    assert isinstance(model.mixer, Attention)
    return {
        "hidden_size": model.width,
        "num_hidden_layers": model.depth,
        "num_attention_heads": model.mixer.heads,
        "intermediate_size": model.mlp.hidden(model.width),
        "hidden_act": "silu" if isinstance(model.mlp, SwiGlu) else ACTIVATIONS[model.mlp.gelu],
        "layer_norm_eps": model.eps,
        "image_size": _side(model.image_size),
        "patch_size": _side(model.stem.patch),
        "num_channels": model.channels,
        "qkv_bias": model.mixer.qkv_bias,
    }


def _side(size: Size) -> int | list[int]:
    return size.height if size.height == size.width else list(size)


def _covered(image: Size, patch: Size) -> Size:
    """As much of an image as whole patches cover: the library's convolution leaves out the rest."""
    return Size(image.height // patch.height * patch.height, image.width // patch.width * patch.width)


def _refuse_contradiction(model: Vit, hints: FileSettings, fields: Fields) -> None:
    """Settings are for what a file leaves open, and config.json leaves open the pool alone."""
    for setting in hints.settings:
        name = setting.partition("=")[0]
        if name != "pool" and override(model, (setting,)) != model:
            message = f"tells another {name} than {setting}"
            hint = "leave the setting out, or mend config.json"
            raise WeightsError(message, code="weights.bad_setting", where=fields.where, hint=hint)


def _heads(fields: Fields, width: int) -> int:
    heads = fields.whole("num_attention_heads")
    if width % heads:
        message = f"{fields.path}num_attention_heads: hidden_size {width} does not divide among {heads} heads"
        raise WeightsError(message, code="weights.bad_config", where=fields.where, hint=fields.hint)
    return heads
