"""The base of the Hugging Face formats: a family declares its names and settings; reading and writing are done here."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, ClassVar, Literal, NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size, override
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig
from vitral.data.transforms.preprocessing import Normalize, Preprocessing
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, PreNorm
from vitral.models.embed import Patches, StemConfig
from vitral.models.head import HeadConfig, LinearHead, NoHead, ProjectionHead
from vitral.models.mlp import Mlp, MlpConfig
from vitral.models.norm import LayerNorm, NormConfig
from vitral.models.pool import AttentionPool, ClassPool, NormedPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, Resampling, learned_table
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    CONFIG,
    PLAIN,
    PROCESSOR,
    Checkpoint,
    DetectedModel,
    Format,
    OracleFiles,
    assumed_preprocessing,
    infer_sizes,
    json_file,
)
from vitral.weights.formats.format import HEADS as PUBLISHED_HEADS
from vitral.weights.formats.huggingface.config import (
    ACTIVATIONS,
    Fields,
)
from vitral.weights.formats.huggingface.defaults import DEFAULTS
from vitral.weights.formats.huggingface.processor import processor_fields, read_processor
from vitral.weights.formats.rules import STEM, TABLE, TOKENS, Rule, Weights, patch_kernel, unsqueezed
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest

OMIT_FORMAT = "omit --format: config.json says what the model is"
DOWNLOAD_AGAIN = "download it again from where the weights came from"
ADD_CONFIG = "put the model's config.json beside it"
# Beside the tower, not in it.
HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "visual_projection.")
MULTI_LABEL = "multi_label_classification"
PROBLEMS = (None, "single_label_classification", MULTI_LABEL, "regression")  # values of problem_type
MASK_TOKEN = (r"embeddings\.mask_token", "replaces masked patches, in pre-training only")
VIT = PLAIN | {
    "tokens.cls": (True,),
    "position.cls": (True,),
    "position.register_rows": (False,),
    "norm.kind": ("layer_norm",),
    "mixer.scale": ("1/sqrt(d)",),
    "mixer.output_norm": (False,),
    "mixer.project_bias": (True,),
    "mlp.bias": (True,),
    "mlp.norm": (False,),
    "mlp.activation": tuple(ACTIVATIONS),
}
# Names inside the library since version 5, and in published files.
RENAMED_SINCE_V5 = (
    (r"^layers\.", "encoder.layer."),
    (r"\battention\.q_proj\.", "attention.attention.query."),
    (r"\battention\.k_proj\.", "attention.attention.key."),
    (r"\battention\.v_proj\.", "attention.attention.value."),
    (r"\battention\.o_proj\.", "attention.output.dense."),
)


class TowerTensors(NamedTuple):
    """The tensors of a file by short names, and the names of unused ones, each with the reason."""

    tensors: dict[str, Tensor]
    unused: dict[str, str]

    def rows(self, name: str) -> int | None:
        """The number of rows of a tensor, such as one for each class; None where it is missing."""
        if (found := self.tensors.get(name)) is None:
            return None
        if not found.ndim or not len(found):
            message = f"{name} has shape {tuple(found.shape)}, expected a row for each output"
            raise WeightsError(message, code="weights.shape_mismatch")
        return len(found)

    def ignore(self, prefix: str, reason: str) -> None:
        """Count the tensors with this prefix as unused."""
        for name in [name for name in self.tensors if name.startswith(prefix)]:
            del self.tensors[name]
            self.unused[name] = reason


class Family(Format):
    """A kind of model of the library, recognized by the `model_type` in its config.json or else by its names.

    Its `names` are short: without the name of the tower, and as in published files.
    """

    library = "huggingface"
    package = "transformers"
    types: ClassVar[tuple[str, ...]]  # model_type in config.json
    architectures: ClassVar[tuple[str, ...]]  # the classes of the library, without a head and with one
    towers: ClassVar[tuple[str, ...]]  # possible prefixes of the names: `vit.`
    renamed: ClassVar[tuple[tuple[str, str], ...]] = ()  # patterns and their replacements
    unused: ClassVar[tuple[tuple[str, str], ...]] = ()  # patterns of tensors that no model here uses, and why
    flat_positions: ClassVar[bool] = False  # whether tokens and positions lack the first dimension
    mask_dims: ClassVar[int] = 0  # of a mask token that the library expects; 0 for none
    mask_name: ClassVar[str] = "embeddings.mask_token"
    eps_field: ClassVar[str] = "layer_norm_eps"
    published_heads: ClassVar[Mapping[int, int]] = PUBLISHED_HEADS  # of each width
    default_fields: ClassVar[Mapping[str, Any]]  # fields that no tensor shows, as in all published models
    processor: ClassVar[str] = "ViT"  # the class that reads a preprocessor_config.json which names none
    assumed_images: ClassVar[tuple[EvalCropConfig, Normalize]]  # of published models, where there is no such file
    supported = VIT
    # The kinds of pool and head that go together, and the places of the pool's norm where it is not before.
    pools_and_heads: ClassVar[frozenset[tuple[str, str]]]
    pool_norms: ClassVar[Mapping[tuple[str, str], tuple[str, ...]]] = {}
    resampling: ClassVar[Resampling] = "bicubic"  # of learned positions
    dropout: ClassVar[str] = "hidden_dropout_prob"  # the fields of the rates of dropout; empty for none
    layer_dropout: ClassVar[bool] = True  # whether it applies in the layers too, not to the first tokens alone
    attention_dropout: ClassVar[str] = "attention_probs_dropout_prob"
    drop_path: ClassVar[Literal["linear", "constant", "none"]] = "none"  # how drop_path_rate grows with the layers

    def matches(self, ckpt: Checkpoint) -> bool:
        if "model_type" in ckpt.config:
            return ckpt.config["model_type"] in self.types
        return self.matches_names({self.short(name) for name in ckpt.tensors})

    def matches_names(self, names: set[str]) -> bool:
        """Whether short names are of this family and no other."""
        raise NotImplementedError

    def short(self, name: str) -> str:
        """The name without the prefix, as in published files."""
        for tower in self.towers:
            name = name.removeprefix(tower)
        for pattern, replacement in self.renamed:
            name = re.sub(pattern, replacement, name)
        return name

    def tower_tensors(self, ckpt: Checkpoint) -> TowerTensors:
        """The tensors that are used, and those that are not."""
        found = TowerTensors({}, {})
        origins: dict[str, str] = {}
        for name, tensor in ckpt.tensors.items():
            short = self.short(name)
            if reason := next((why for pattern, why in self.unused if re.match(pattern, short)), ""):
                found.unused[name] = reason
            elif short in origins:
                message = f"has the same tensor twice, as {origins[short]} and as {name}"
                raise ckpt.error(message, "weights.duplicate_tensor", "give a file with one of them")
            else:
                origins[short], found.tensors[short] = name, tensor
        return found

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        found = self.prepare(self.tower_tensors(ckpt))
        fields, assumed = self.fields(ckpt, found)
        try:
            model = self.model(self.vision_fields(fields), found)
        except ConfigError as error:
            raise WeightsError(str(error), code="weights.bad_config", where=fields.where, hint=fields.hint) from None
        for setting in ckpt.settings if ckpt.config else ():  # config.json records everything but the pool
            name = setting.partition("=")[0]
            if name != "pool" and override(model, (setting,)) != model:
                message, hint = f"has another {name} than {setting}", "omit the setting, or correct config.json"
                raise WeightsError(message, code="weights.bad_setting", where=fields.where, hint=hint)
        preprocessing, more = self.preprocessing(ckpt, model)
        labels = () if isinstance(model.head, NoHead) else fields.labels(model.head.num_classes)
        prefix = self.prefix(model)
        ckpt = ckpt._replace(tensors={_full(name, prefix): tensor for name, tensor in found.tensors.items()})
        detected = self.detected(ckpt, model, preprocessing, (*assumed, *more), labels, found.unused)
        return detected if isinstance(model.head, NoHead) else _of_problem(detected, fields)

    def prepare(self, found: TowerTensors) -> TowerTensors:
        """The tensors once those are combined, or discarded, for which the name alone does not decide."""
        return found

    def fields(self, ckpt: Checkpoint, found: TowerTensors) -> tuple[Fields, tuple[str, ...]]:
        """The fields of config.json; without one, those that the tensors show, and what is assumed."""
        if not ckpt.config:
            data = self.fields_from_tensors(ckpt._replace(tensors=found.tensors)) | {**self.default_fields}
            words = ", ".join(f"{name} {value}" for name, value in self.default_fields.items())
            heads = f"{data['num_attention_heads']} heads"
            return Fields(data, str(ckpt.path), ADD_CONFIG), (f"there is no config.json: {heads}, {words}",)
        fields = Fields(ckpt.config, str(ckpt.path.parent / CONFIG), DOWNLOAD_AGAIN)
        if fields.given("model_type") not in self.types:  # another format was asked for
            raise fields._replace(hint=OMIT_FORMAT).wrong("model_type", format_choices(self.types))
        if fields.has("quantization_config"):
            raise fields.wrong("quantization_config", "none: weights in floating point", "weights.unsupported")
        defaults = DEFAULTS.get(fields.data["model_type"], {})
        missing = {name: value for name, value in defaults.items() if name not in fields.data}
        words = ", ".join(f"{name} {value}" for name, value in missing.items())
        stated = (f"{CONFIG} omits fields, for which the library has defaults: {words}",) if missing else ()
        if any(name.startswith("AutoModel") for name in fields.part("auto_map", {}).data):
            code = f"{CONFIG} has code of its own (auto_map), which was not run; read as the library's {self.types[0]}"
            stated = (*stated, code)
        return fields._replace(data={**missing, **fields.data}), stated

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        """The fields that the tensors, by short names, show; the head count is that of published models."""
        sizes = infer_sizes(ckpt, self.names)
        found = {
            "hidden_size": sizes.width,
            "num_channels": sizes.channels,
            "patch_size": list(sizes.patch),
            "num_hidden_layers": sizes.depth,
            "num_attention_heads": ckpt.infer_heads(sizes.width, self.published_heads),
            "intermediate_size": sizes.hidden,
        }
        if TABLE in self.names:
            found["image_size"] = list(self.table_image_size(ckpt, sizes.patch))
        return found

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        """The image size that the table of positions is for."""
        rows = ckpt.shape(str(self.names[TABLE]), 2 if self.flat_positions else 3)[-2]
        prefix = len(self.names.get(TOKENS, ())) if self.register_rows else 1
        return ckpt.infer_image_size(rows, (prefix,), patch)[0]

    def vision_fields(self, fields: Fields) -> Fields:
        """The fields that describe the Vision Transformer, in a file that may describe more."""
        return fields

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        width, patch, heads = (
            fields.whole("hidden_size"),
            fields.size("patch_size"),
            fields.whole("num_attention_heads"),
        )
        dropout = fields.rate(self.dropout) if self.dropout else 0.0
        inner = dropout if self.layer_dropout else 0.0
        if width % heads:
            message = f"{fields.path}num_attention_heads: hidden_size {width} does not divide among {heads} heads"
            raise WeightsError(message, code="weights.bad_config", where=fields.where, hint=fields.hint)
        return Vit(
            image_size=_covered(fields.size("image_size"), patch),
            channels=fields.whole("num_channels"),
            width=width,
            depth=fields.whole("num_hidden_layers"),
            stem=self.stem(patch),
            tokens=self.tokens(fields).model_copy(update={"dropout": dropout}),
            position=self.position(fields),
            block=self.block(fields),
            mixer=self.mixer(fields, heads, inner),
            mlp=self.mlp(fields, width).model_copy(update=_mlp_dropout(inner)),
            pool=self.pool(fields, found),
            head=self.head(fields, found),
            norm=self.norm(fields),
            eps=fields.number(self.eps_field),
        )

    def stem(self, patch: Size) -> StemConfig:
        return Patches(patch=patch, bias=self.supported["stem.bias"][0])

    def block(self, fields: Fields) -> PreNorm:
        scale = NoScale() if "none" in self.supported["block.scale.kind"] else LayerScale()
        if self.drop_path == "none" or not (rate := fields.rate("drop_path_rate")):
            return PreNorm(scale=scale)
        return PreNorm(scale=scale, drop_path_rate=rate, drop_path_schedule=self.drop_path)

    def mixer(self, fields: Fields, heads: int, dropout: float) -> Attention:
        rate = fields.rate(self.attention_dropout)
        return Attention(heads=heads, qkv_bias=self.qkv_bias(fields), attention_dropout=rate, dropout=dropout)

    def norm(self, fields: Fields) -> NormConfig:
        return LayerNorm()

    def tokens(self, fields: Fields) -> Tokens:
        cls, registers, norm = (self.supported[f"tokens.{name}"][0] for name in ("cls", "registers", "norm"))
        return Tokens(cls=cls, registers=registers, norm=norm)

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(cls=self.supported["tokens.cls"][0], resampling=self.resampling)

    def qkv_bias(self, fields: Fields) -> bool:
        return fields.flag("qkv_bias", True) or "mixer.qkv_bias" in self.supported

    def mlp(self, fields: Fields, width: int) -> MlpConfig:
        return Mlp(ratio=fields.whole("intermediate_size") / width, activation=fields.activation())

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return ClassPool()

    def head(self, fields: Fields, found: TowerTensors) -> HeadConfig:
        if (classes := found.rows(f"{self.names.get('head.linear', 'classifier')}.weight")) is None:
            return NoHead()
        return LinearHead(num_classes=classes)

    def preprocessing(self, ckpt: Checkpoint, model: Vit) -> tuple[Preprocessing, tuple[str, ...]]:
        """The preprocessing, and what is assumed."""
        if not ckpt.processor:
            own = assumed_preprocessing(model.image_size, model.channels, *self.assumed_images)
            mean = ", ".join(f"{number:g}" for number in own.normalize.mean)
            return own, (f"there is no {PROCESSOR}: images of {model.image_size}, {own.crop.kind} crop, mean {mean}",)
        fields = Fields(ckpt.processor, str(ckpt.path.parent / PROCESSOR), DOWNLOAD_AGAIN)
        made, assumed = read_processor(fields, model.channels, self.processor, model.image_size)
        covered = _covered(made.image_size, model.token_size())
        if covered != made.image_size:
            if not all(covered):
                raise fields.wrong("size", f"no less than a patch, {model.token_size()}")
            assumed += (f"images of {covered}; the library ignores what its patches do not cover of {made.image_size}",)
        return made.model_copy(update={"image_size": covered}), assumed

    def prefix(self, model: Vit) -> str:
        """The prefix of the tower's names in a file of such a model."""
        return "" if isinstance(model.head, NoHead) else self.towers[0]

    def special_rules(self, model: Vit) -> list[Rule]:
        if not self.flat_positions:
            return super().special_rules(model)
        kernel = patch_kernel(f"{STEM}.weight", f"{self.names[STEM]}.weight", model.stem.patch)
        named = {TABLE: self.names[TABLE]} if learned_table(model.position) else {}
        named |= {TOKENS: self.names[TOKENS][0]} if TOKENS in self.names else {}
        return [kernel, *(unsqueezed(ours, str(theirs)) for ours, theirs in named.items())]

    def rules(self, model: Vit, own: Weights) -> list[Rule]:
        before = self.prefix(model)
        rules = super().rules(model, own)
        return [replace(rule, theirs=tuple(_full(name, before) for name in rule.theirs)) for rule in rules]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if (model.pool.kind, model.head.kind) not in self.pools_and_heads:
            known = " or ".join(f"{pool} with {head}" for pool, head in sorted(self.pools_and_heads))
            yield f"head: {self.title} has pool {known}, this model {model.pool.kind} with {model.head.kind}"
        places = self.pool_norms.get((model.pool.kind, model.head.kind), ("before",))
        if isinstance(model.pool, NormedPool) and model.pool.norm not in places:
            yield f"pool.norm: {self.title} needs {format_choices(places)}, this model has {model.pool.norm}"
        if isinstance(model.head, ProjectionHead) and model.head.activation not in ACTIVATIONS:
            yield f"head.activation: {self.title} has no {model.head.activation}"
        if isinstance(model.pool, AttentionPool) and model.pool.heads not in ("mixer", model.context().heads):
            yield f"pool.heads: {self.title} has as many as its mixer"
        size = bundle.preprocessing.image_size
        crop = bundle.preprocessing.crop
        if isinstance(crop, CenterCrop) and crop.aspect == "keep" and len(set(size)) > 1:
            yield f"preprocessing.crop: the library crops squares, this model needs {size}"

    def resamples_as(self, model: Vit) -> bool:
        learned = learned_table(model.position)
        return learned is None or learned.resampling == self.resampling_with(model.tokens.registers)

    def resampling_with(self, registers: int) -> Resampling:
        """How positions are resampled in a model with so many registers."""
        return self.resampling

    def architecture(self, model: Vit) -> str:
        """The class of the library that reads such a model."""
        return self.architectures[not isinstance(model.head, NoHead)]

    def config_fields(self, model: Vit) -> dict[str, Any]:
        """The fields of config.json that describe the Vision Transformer."""
        assert isinstance(model.mixer, Attention)
        return {
            "model_type": self.types[0],
            "hidden_size": model.width,
            "num_hidden_layers": model.depth,
            "num_attention_heads": model.mixer.heads,
            "intermediate_size": model.mlp.hidden(model.width),
            "hidden_act": ACTIVATIONS[model.mlp.activation][0],
            self.eps_field: model.eps,
            **self.dropout_fields(model),
            "image_size": _side(model.image_size),
            "patch_size": _side(model.token_size()),
            "num_channels": model.channels,
            "qkv_bias": model.mixer.qkv_bias,
        }

    def dropout_fields(self, model: Vit) -> dict[str, float]:
        assert isinstance(model.mixer, Attention)
        found = {self.dropout: model.tokens.dropout} if self.dropout else {}
        found |= {} if self.drop_path == "none" else {"drop_path_rate": model.block.drop_path_rate}
        return found | {self.attention_dropout: model.mixer.attention_dropout}

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        model = bundle.model
        assert isinstance(model, Vit)
        config = {"architectures": [self.architecture(model)]} | self.config_fields(model)
        if bundle.classes:
            config |= {"problem_type": MULTI_LABEL} if bundle.activation == "sigmoid" else {}
            config["id2label"] = dict(enumerate(bundle.classes))
            config["label2id"] = {name: label for label, name in enumerate(bundle.classes)}
        if self.mask_dims:
            mask = torch.zeros(*[1] * (self.mask_dims - 1), model.width)
            tensors = {**tensors, f"{self.prefix(model)}{self.mask_name}": mask}
        documents = {CONFIG: json_file(config), PROCESSOR: json_file(processor_fields(bundle.preprocessing))}
        return super().files(bundle, tensors) | documents

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        if not files.config:
            raise NoOracleError("there is no config.json, without which transformers opens nothing")
        return OracleRequest("transformers", {"folder": str(files.folder)})


def _full(name: str, prefix: str) -> str:
    """A short name as in a whole model, where the tower has a prefix and the head has none."""
    return name if name.startswith(HEADS) else prefix + name


def _of_problem(found: DetectedModel, fields: Fields) -> DetectedModel:
    """The model with the activation that the library's pipeline applies to the logits of such a problem."""
    problem = fields.data.get("problem_type")
    if problem not in PROBLEMS:
        raise fields.wrong("problem_type", format_choices(filter(None, PROBLEMS)))
    if problem == MULTI_LABEL:
        return found._replace(activation="sigmoid")
    if problem != "regression":
        return found
    words = "problem_type is regression: its outputs are the values, and probabilities of them say nothing"
    return found._replace(assumptions=(*found.assumptions, words))


def _mlp_dropout(rate: float) -> dict[str, float]:
    """The library drops what leaves the MLP, and nothing inside."""
    return {"dropout": rate, "hidden_dropout": 0.0} if rate else {}


def _side(size: Size) -> int | list[int]:
    return size.height if size.height == size.width else list(size)


def _covered(image: Size, patch: Size) -> Size:
    """The part of an image that whole patches cover: the library's convolution ignores the rest."""
    return Size(image.height // patch.height * patch.height, image.width // patch.width * patch.width)
