"""ViT and its relatives that share its layers: MSN, FLAVA, MAE, DeiT, I-JEPA, and the encoders of DPT and YOLOS.

`ViTModel`, `ViTForImageClassification`, the encoder of `ViTForMaskedImageModeling`; `ViTMSNModel` and its classifier;
`FlavaImageModel`; the encoder of `ViTMAEModel` and `ViTMAEForPreTraining`; `DeiTModel`, `DeiTForImageClassification`,
`DeiTForImageClassificationWithTeacher`; `IJepaModel` and its classifier; `DPTModel`, `DPTForDepthEstimation` and
`DPTForSemanticSegmentation`; `YolosModel` and `YolosForObjectDetection`.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop, EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import CENTERED, IMAGENET, Normalize
from vitral.models.head import DistilledHead, HeadConfig, LinearHead, NoHead, ProjectionHead
from vitral.models.pool import ClassPool, DistilledPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, learned_table
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import ANY_NUMBER, Checkpoint
from vitral.weights.formats.huggingface.config import ACTIVATIONS, Fields
from vitral.weights.formats.huggingface.family import MASK_TOKEN, RENAMED_SINCE_V5, VIT, Family, TowerTensors
from vitral.weights.formats.rules import TABLE, TOKENS, Names, Rule, averaged_heads, concat, layer_names, patch_kernel

STEM, LAYER = "embeddings.patch_embeddings.projection", "encoder.layer.*."
ATTENTION = ("attention.attention.query", "attention.attention.key", "attention.attention.value")
POOLER = "pooler.dense"
DECODER = (r"decoder\.", "reconstructs masked patches, in pre-training only")
CLASS_TOKEN, DISTILLATION_TOKEN = "embeddings.cls_token", "embeddings.distillation_token"
DETECTION_TOKENS, MIDDLE = "embeddings.detection_tokens", "encoder.mid_position_embeddings"
TEACHER = ("cls_classifier", "distillation_classifier")
FIRST = LAYER.replace("*", "0")
BIASES = "relative_position_bias.relative_position_bias_table"
BEIT = {
    f"{FIRST}lambda_1",
    f"{FIRST}attention.attention.{BIASES}",
    f"encoder.{BIASES}",
}  # some of these tell it from a ViT
VITPOSE = re.compile(r"encoder\.layer\.\d+\.mlp\.fc1\.")  # I-JEPA has other names, published or not
PARTS = {f"{STEM}.weight", f"{FIRST}attention.attention.query.weight", f"{FIRST}layernorm_before.weight"}


class HfVit(Family):
    """The paper's model."""

    name = "hf-vit"
    title = "Hugging Face's ViT"
    types: ClassVar[tuple[str, ...]] = ("vit", "flava_image_model")  # of one layout; the first is written
    architectures: ClassVar[tuple[str, ...]] = ("ViTModel", "ViTForImageClassification")
    towers = ("vit.",)
    renamed: ClassVar[tuple[tuple[str, str], ...]] = (
        *RENAMED_SINCE_V5,
        (r"\bmlp\.fc1\.", "intermediate.dense."),
        (r"\bmlp\.fc2\.", "output.dense."),
    )
    unused: ClassVar[tuple[tuple[str, str], ...]] = (MASK_TOKEN, DECODER)
    names: ClassVar[Names] = {
        "stem.project": STEM,
        TOKENS: (CLASS_TOKEN,),
        TABLE: "embeddings.position_embeddings",
        **layer_names(
            LAYER,
            {
                "mixer_norm": "layernorm_before",
                "mixer.heads.qkv": ATTENTION,
                "mixer.project": "attention.output.dense",
                "mlp_norm": "layernorm_after",
                "mlp.expand": "intermediate.dense",
                "mlp.contract": "output.dense",
            },
        ),
        "norm": "layernorm",
        "head.linear": "classifier",
    }
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-12, "hidden_act": "gelu"}
    assumed_images: ClassVar[tuple[EvalCropConfig, Normalize]] = (Resize(), CENTERED)
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear"), ("cls", "projection")})

    def matches_names(self, names: set[str]) -> bool:
        others = {DISTILLATION_TOKEN, DETECTION_TOKENS, "decoder.decoder_pos_embed"} | BEIT
        return names >= PARTS | {CLASS_TOKEN} and not names & others

    def prepare(self, found: TowerTensors) -> TowerTensors:
        if "classifier.weight" in found.tensors:
            found.ignore("pooler.", "a pooler that the classifier does not read")
        return found

    def fields(self, ckpt: Checkpoint, found: TowerTensors) -> tuple[Fields, tuple[str, ...]]:
        fields, assumed = super().fields(ckpt, found)
        pooled = not ckpt.config and f"{POOLER}.weight" in found.tensors
        return fields, (*assumed, *["tanh in the pooler"] * pooled)

    def head(self, fields: Fields, found: TowerTensors) -> HeadConfig:
        """A pooler without a classifier is what the model returns: a layer with tanh on the class token."""
        head, width = super().head(fields, found), found.rows(f"{POOLER}.weight")
        if width is None or not isinstance(head, NoHead):
            return head
        activation = fields.activation("pooler_act") if fields.has("pooler_act") else "tanh"
        return ProjectionHead(width=width, bias=True, activation=activation)

    def tensor_names(self, model: Vit) -> Names:
        pooled = {"head.linear": POOLER} if isinstance(model.head, ProjectionHead) else {}
        return {**super().tensor_names(model), **pooled}

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        yield from super().other_faults(model, bundle)
        if isinstance(model.head, ProjectionHead) and not model.head.bias:
            yield f"head.bias: the pooler of {self.title} has a bias, the projection of this model none"

    def config_fields(self, model: Vit) -> dict[str, Any]:
        if not isinstance(model.head, ProjectionHead):
            return super().config_fields(model)
        pooler = {"pooler_act": ACTIVATIONS[model.head.activation][0], "pooler_output_size": model.head.width}
        return super().config_fields(model) | pooler


class HfVitMsn(HfVit):
    """A ViT by its tensors, with a larger eps (arXiv 2204.07141)."""

    name = "hf-vit-msn"
    title = "Hugging Face's ViT-MSN"
    types = ("vit_msn",)
    architectures = ("ViTMSNModel", "ViTMSNForImageClassification")
    unused = (MASK_TOKEN,)
    default_fields: ClassVar[Mapping[str, Any]] = {"layer_norm_eps": 1e-6, "hidden_act": "gelu"}
    assumed_images = (Resize(), IMAGENET)
    pools_and_heads = frozenset({("cls", "none"), ("cls", "linear")})

    def matches_names(self, names: set[str]) -> bool:
        decoders = {f"{POOLER}.weight", "decoder.0.weight"}  # of ViT
        return super().matches_names(names) and not names & decoders


class HfMae(HfVit):
    """A ViT by its tensors; its fixed positions are a table as learned ones are."""

    name = "hf-mae"
    title = "Hugging Face's ViT-MAE"
    types = ("vit_mae",)
    architectures = ("ViTMAEModel",)
    unused = (DECODER,)
    assumed_images = (Resize(), IMAGENET)
    squares = True
    pools_and_heads = frozenset({("cls", "none")})

    def matches_names(self, names: set[str]) -> bool:
        others = {DISTILLATION_TOKEN, DETECTION_TOKENS, f"{POOLER}.weight", "classifier.weight", "decoder.0.weight"}
        return names >= PARTS | {CLASS_TOKEN} and not names & (others | BEIT)


class HfDeit(HfVit):
    """A ViT with a distillation token, which is a register here (arXiv 2012.12877)."""

    name = "hf-deit"
    title = "Hugging Face's DeiT"
    types = ("deit",)
    architectures = ("DeiTModel", "DeiTForImageClassification")
    towers = ("deit.",)
    names: ClassVar[Names] = {
        **HfVit.names,
        TOKENS: (CLASS_TOKEN, DISTILLATION_TOKEN),
        "head.cls.linear": TEACHER[0],
        "head.distilled.linear": TEACHER[1],
    }
    processor = "DeiT"
    assumed_images = (CenterCrop(fraction=0.875, filter="bicubic", aspect="squash", rounding="down"), IMAGENET)
    supported = VIT | {"tokens.registers": (1,), "position.register_rows": (True, False)}
    pools_and_heads = HfVit.pools_and_heads | {("distilled", "distilled"), ("distilled", "linear")}

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS | {DISTILLATION_TOKEN}

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        """A spectrogram is an image of one channel."""
        stem = next((tensor for name, tensor in ckpt.tensors.items() if self.short(name) == f"{STEM}.weight"), None)
        sound = "model_type" not in ckpt.config and stem is not None and stem.shape[1:2] == (1,)
        return ("the Audio Spectrogram Transformer, a model of sound",) if sound else ()

    def position(self, fields: Fields) -> PositionConfig:
        return Learned1d(register_rows=True, resampling=self.resampling)

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return DistilledPool() if f"{TEACHER[1]}.weight" in found.tensors else ClassPool()

    def head(self, fields: Fields, found: TowerTensors) -> HeadConfig:
        """One head, or one for each token, whose mean the library takes."""
        classes = found.rows(f"{TEACHER[1]}.weight")
        return super().head(fields, found) if classes is None else DistilledHead(num_classes=classes)

    def special_rules(self, model: Vit) -> list[Rule]:
        distilled = isinstance(model.pool, DistilledPool) and isinstance(model.head, LinearHead)  # of old bundles
        return super().special_rules(model) + averaged_heads("head.linear", TEACHER) * distilled

    def architecture(self, model: Vit) -> str:
        return super().architecture(model) + "WithTeacher" * isinstance(model.pool, DistilledPool)


class HfIjepa(HfVit):
    """A ViT without a class token, whose classifier reads the mean of the patches (arXiv 2301.08243)."""

    name = "hf-ijepa"
    title = "Hugging Face's I-JEPA"
    types = ("ijepa",)
    architectures = ("IJepaModel", "IJepaForImageClassification")
    towers = ("ijepa.",)
    unused = (*HfVit.unused, (r"pooler\.", "a pooler that reads the first patch alone"))
    names: ClassVar[Names] = {ours: theirs for ours, theirs in HfVit.names.items() if ours != TOKENS}
    supported = VIT | {"tokens.cls": (False,)}
    pools_and_heads = frozenset({("mean", "none"), ("mean", "linear")})
    squares = True

    def matches(self, ckpt: Checkpoint) -> bool:
        pose = "model_type" not in ckpt.config and any(VITPOSE.search(name) for name in ckpt.tensors)
        return super().matches(ckpt) and not pose

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS and CLASS_TOKEN not in names

    def pool(self, fields: Fields, found: TowerTensors) -> PoolConfig:
        return MeanPool()


class HfDpt(HfVit):
    """The ViT that DPT reads, without its neck and head (arXiv 2103.13413)."""

    name = "hf-dpt"
    title = "the encoder of Hugging Face's DPT"
    types = ("dpt",)
    architectures = ("DPTModel",)
    towers = ("dpt.",)
    unused = (
        *HfVit.unused,
        (r"neck\.", "fuses the layers for a dense prediction"),
        (r"(auxiliary_)?head\.", "predicts depth or classes of pixels"),
    )
    resampling = "bilinear_centers"
    processor = "DPT"
    assumed_images = (Resize(filter="bicubic"), CENTERED)
    pools_and_heads = frozenset({("cls", "none"), ("cls", "projection")})
    squares = True

    def matches_names(self, names: set[str]) -> bool:
        """Whole models have a neck or a prefix; without them, by its names it is a ViT as well."""
        others = {DISTILLATION_TOKEN, DETECTION_TOKENS, "classifier.weight", "decoder.decoder_pos_embed"} | BEIT
        return names >= PARTS | {CLASS_TOKEN} and not names & others

    def model(self, fields: Fields, found: TowerTensors) -> Vit:
        if fields.flag("is_hybrid", False):
            raise fields.wrong("is_hybrid", "false: its ResNet has no counterpart", "weights.unsupported")
        if fields.has("backbone_config") or fields.has("backbone"):
            raise fields.wrong("backbone_config", "none: a ViT of its own", "weights.unsupported")
        return super().model(fields, found)


class HfYolos(HfVit):
    """A ViT with detection tokens, which are registers with positions here; without its detector (arXiv 2106.00666)."""

    name = "hf-yolos"
    title = "the encoder of Hugging Face's YOLOS"
    types = ("yolos",)
    architectures = ("YolosModel",)
    renamed = (*HfVit.renamed, (r"^encoder\.interpolation\.mid_", "encoder.mid_"))
    unused = (
        *HfVit.unused,
        (r"class_labels_classifier\.", "classifies detected objects"),
        (r"bbox_predictor\.", "locates detected objects"),
    )
    supported = VIT | {
        "tokens.registers": ANY_NUMBER[1:],
        "position.register_rows": (True,),
        "position.where": ("stem", "layers"),
    }
    processor = "Yolos"
    assumed_images = (Resize(), IMAGENET)
    pools_and_heads = frozenset({("cls", "none"), ("cls", "projection")})

    def matches_names(self, names: set[str]) -> bool:
        return names >= PARTS | {DETECTION_TOKENS}

    def fields_from_tensors(self, ckpt: Checkpoint) -> dict[str, Any]:
        shown = {"num_detection_tokens": ckpt.shape(DETECTION_TOKENS, 3)[1]}
        return super().fields_from_tensors(ckpt) | shown | {"use_mid_position_embeddings": MIDDLE in ckpt.tensors}

    def table_image_size(self, ckpt: Checkpoint, patch: Size) -> Size:
        """As given: published models have grids that are not square."""
        rows, prefix = ckpt.shape(str(self.names[TABLE]), 3)[1], 1 + ckpt.shape(DETECTION_TOKENS, 3)[1]
        if not ckpt.setting("image_size"):
            message = f"does not record the image size of its {rows - prefix} positions"
            raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH")
        return ckpt.infer_image_size(rows, (prefix,), patch)[0]

    def tokens(self, fields: Fields) -> Tokens:
        return Tokens(registers=fields.whole("num_detection_tokens"))

    def position(self, fields: Fields) -> PositionConfig:
        where: Any = "layers" if fields.flag("use_mid_position_embeddings", True) else "stem"
        return Learned1d(where=where, register_rows=True, resampling=self.resampling)

    def special_rules(self, model: Vit) -> list[Rule]:
        """In theirs, the patches come before the detection tokens, and the tables of later layers are apart."""
        registers, names = model.tokens.registers, self.tensor_names(model)
        table = learned_table(model.position)
        layers = [MIDDLE] if table is not None and table.where == "layers" and model.depth > 1 else []

        def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
            tables = torch.cat([found[2], *(each[:, 0] for each in found[3:])])  # (copies, 1 + N + registers, D)
            first, patches, rest = tables.tensor_split([1, tables.shape[1] - registers], dim=1)
            return [torch.cat([found[0][0], found[1][0]]), torch.cat([first, rest, patches], dim=1)]

        def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
            cls, others = own[0].split([1, registers])  # (1, D), (registers, D)
            first, rest, patches = own[1].tensor_split([1, 1 + registers], dim=1)
            tables = concat([first, patches, rest], dim=1)  # (copies, 1 + N + registers, D)
            return [cls[None], others[None], tables[:1], *([tables[1:, None]] if layers else [])]

        kernel = patch_kernel("stem.project.weight", f"{STEM}.weight", model.stem.patch)
        theirs = (CLASS_TOKEN, DETECTION_TOKENS, str(names[TABLE]), *layers)
        return [kernel, Rule((TOKENS, TABLE), theirs, read, write)]

    def config_fields(self, model: Vit) -> dict[str, Any]:
        table = learned_table(model.position)
        assert table is not None
        return super().config_fields(model) | {
            "num_detection_tokens": model.tokens.registers,
            "use_mid_position_embeddings": table.where == "layers",
            "image_size": list(model.image_size),  # of which the library reads both sides
        }
