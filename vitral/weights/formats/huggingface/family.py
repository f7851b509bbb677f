"""The base of the Hugging Face formats: a family declares its parts; reading and writing are done here."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

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

DOWNLOAD_AGAIN = "get it again from where the weights came from"
ADD_CONFIG = "put the model's config.json beside it"


class Family(Format):
    """A kind of model of the library, known by the `model_type` in its config.json or else by its names."""

    library: ClassVar[str] = "huggingface"
    package: ClassVar[str] = "transformers"
    types: ClassVar[tuple[str, ...]]  # model_type in config.json
    names: ClassVar[Names]
    shapes: ClassVar[Shapes]  # where the tensors show what a missing config.json would tell
    default_fields: ClassVar[Mapping[str, Any]]  # fields that no tensor shows, as all published models have them
    processor_defaults: ClassVar[ProcessorDefaults]
    pools_and_heads: ClassVar[frozenset[tuple[str, str]]]  # the kinds of pool and head that go together
    resizes: ClassVar[bool] = True  # whether its code has to be told that an image has another size than its own

    def matches(self, ckpt: Checkpoint) -> bool:
        if "model_type" in ckpt.config:
            return ckpt.config["model_type"] in self.types
        return self.matches_names({self.names.short(name) for name in ckpt.tensors})

    def matches_names(self, names: set[str]) -> bool:
        """Whether short names are of this family and no other."""
        raise NotImplementedError

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        found = self.prepare(sort_tensors(ckpt, self.names))
        fields, assumed = self.fields(ckpt, found, settings)
        try:
            model = self.model(self.vision_fields(fields), found)
        except ConfigError as error:
            raise WeightsError(str(error), code="weights.bad_config", where=fields.where, hint=fields.hint) from None
        if ckpt.config:
            _refuse_contradiction(model, settings, fields)
        seen, more = self.preprocessing(ckpt, model)
        classes = model.head.num_classes if isinstance(model.head, LinearHead) else 0
        named = fields.labels(classes) if classes else ()
        if named is None:
            named, more = numbered_classes(classes), (*more, f"its {classes:,} classes have no names: numbered")
        tensors = add_prefix(found.tensors, self.prefix(model))
        return DetectedModel(self.title, model, seen, named, tensors, found.dropped, (*assumed, *more))

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """The tensors once those are brought together, or set aside, of which a name alone does not tell."""
        return found

    def fields(self, ckpt: Checkpoint, found: TowerTensors, settings: FileSettings) -> tuple[Fields, tuple[str, ...]]:
        """What config.json tells; without one, what the tensors do, and what had to be assumed."""
        if not ckpt.config:
            short = ckpt._replace(tensors=found.tensors)
            data = {**self.fields_from_tensors(short), **self.shapes.fields(short, settings), **self.default_fields}
            words = ", ".join(f"{name} {value}" for name, value in self.default_fields.items())
            heads = f"{data['num_attention_heads']} heads"
            return Fields(data, str(ckpt.path), ADD_CONFIG), (f"there is no config.json: {heads}, {words}",)
        fields = Fields(ckpt.config, str(ckpt.path.parent / CONFIG), DOWNLOAD_AGAIN)
        if fields.given("model_type") not in self.types:
            raise fields.wrong("model_type", format_choices(self.types))
        return fields, ()

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        """More fields that the tensors, by short names, show where there is no config.json."""
        return {}

    def vision_fields(self, fields: Fields) -> Fields:
        """The fields that describe the Vision Transformer, in a file that may describe more."""
        return fields

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        width, patch = fields.whole("hidden_size"), fields.size("patch_size")
        return Vit(
            image_size=_covered(fields.size("image_size"), patch),
            channels=fields.whole("num_channels"),
            width=width,
            depth=fields.whole("num_hidden_layers"),
            stem=Patches(patch=patch, bias=bool(self.supported.stem_bias)),
            tokens=self.tokens(fields),
            position=self.position(fields),
            block=PreNorm(scale=LayerScale() if self.supported.scale else NoScale()),
            mixer=Attention(heads=_heads(fields, width), qkv_bias=self.qkv_bias(fields)),
            mlp=self.mlp(fields, width),
            pool=self.pool(found),
            head=self.head(found),
            eps=fields.number("layer_norm_eps"),
        )

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(cls=bool(self.supported.cls), norm=bool(self.supported.pre_norm))

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(cls=bool(self.supported.cls), resampling="bicubic")

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("qkv_bias", True) or bool(self.supported.qkv_bias)

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

    def preprocessing(self, ckpt: Checkpoint, model: Vit) -> tuple[Preprocessing, tuple[str, ...]]:
        """What is done to images, and what had to be assumed."""
        if not ckpt.processor:
            scaling = (
                self.processor_defaults.normalize
                if len(self.processor_defaults.normalize.mean) in {1, model.channels}
                else CENTERED
            )
            decoding = Decoding(channels=model.channels)
            own = Preprocessing(
                image_size=model.image_size, decoding=decoding, crop=self.processor_defaults.crop, normalize=scaling
            )
            mean = ", ".join(f"{number:g}" for number in scaling.mean)
            return own, (f"there is no {PROCESSOR}: images of {model.image_size}, {own.crop.kind} view, mean {mean}",)
        fields = Fields(ckpt.processor, str(ckpt.path.parent / PROCESSOR), DOWNLOAD_AGAIN)
        made, assumed = read_processor(fields, model.channels, self.processor_defaults)
        assert isinstance(model.stem, Patches)
        covered = _covered(made.image_size, model.stem.patch)
        if covered != made.image_size:
            if not all(covered):
                raise fields.wrong("size", f"no less than a patch, {model.stem.patch}")
            assumed += (
                f"images of {covered}; the library leaves out what its patches do not cover of {made.image_size}",
            )
        return made.model_copy(update={"image_size": covered}), assumed

    def prefix(self, model: Vit) -> str:
        """What stands before the tower's names in a file of such a model."""
        return "" if isinstance(model.head, NoHead) else self.names.towers[0]

    def tower_rules(self, model: Vit) -> list[Rule]:
        """The rules of the tower by itself."""
        raise NotImplementedError

    def head_rules(self, model: Vit) -> list[Rule]:
        return affine("head.linear", "classifier")

    def rules(self, model: Vit) -> list[Rule]:
        before = self.prefix(model)
        rules = [replace(rule, theirs=tuple(before + name for name in rule.theirs)) for rule in self.tower_rules(model)]
        return rules + (self.head_rules(model) if isinstance(model.head, LinearHead) else [])

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if (model.pool.kind, model.head.kind) not in self.pools_and_heads:
            known = " or ".join(f"{pool} with {head}" for pool, head in sorted(self.pools_and_heads))
            yield f"head: {self.title} has pool {known}, this model {model.pool.kind} with {model.head.kind}"
        if isinstance(model.pool, MeanPool) and model.pool.normalizes():
            yield f"pool.norm: {self.title} normalizes before the mean"
        if isinstance(model.pool, AttentionPool) and model.pool.heads not in ("mixer", model.context().heads):
            yield f"pool.heads: {self.title} has as many as its mixer"
        size = bundle.preprocessing.image_size
        if isinstance(bundle.preprocessing.crop, CenterCrop) and len(set(size)) > 1:
            yield f"preprocessing.crop: the library crops squares, this model needs {size}"

    def architecture(self, model: Vit) -> str:
        """The class of the library that reads such a model."""
        raise NotImplementedError

    def config_fields(self, model: Vit) -> dict[str, Any]:
        """The fields of config.json, save those that every model has."""
        return {"model_type": self.types[0]} | common_fields(model)

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        config = {"architectures": [self.architecture(bundle.model)]} | self.config_fields(bundle.model)
        if bundle.classes:
            config["id2label"] = dict(enumerate(bundle.classes))
            config["label2id"] = {name: label for label, name in enumerate(bundle.classes)}
        notes = {CONFIG: json_file(config), PROCESSOR: json_file(processor_fields(bundle.preprocessing))}
        return super().files(bundle, tensors) | notes

    def import_library(self, model: Vit) -> Any:
        return getattr(import_module("transformers"), self.architecture(model))

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        model = bundle.model
        assert isinstance(model, Vit)
        peer = code.from_pretrained(folder, **self.load_options(model)).eval()

        @torch.no_grad()
        def answers(images: Tensor) -> ModelOutputs:
            other = self.resizes and Size(*images.shape[2:]) != model.image_size
            ways = {"interpolate_pos_encoding": True} if other else {}
            logits = None if isinstance(model.head, NoHead) else peer(images, **ways).logits
            return ModelOutputs(self.reference_tokens(peer, images, ways), logits)

        return answers

    def load_options(self, model: Vit) -> dict[str, Any]:
        """What the library has to be told beside the folder."""
        return {}

    def reference_tokens(self, peer: Any, images: Tensor, ways: Mapping[str, Any]) -> Tensor:
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


def _refuse_contradiction(model: Vit, settings: FileSettings, fields: Fields) -> None:
    """Settings are for what a file leaves open, and config.json leaves open the pool alone."""
    for setting in settings.items:
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
