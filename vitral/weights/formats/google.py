"""Google's .npz checkpoints, of google-research/vision_transformer and of big_vision.

Kernels have their inputs first. The ResNet of a hybrid is `conv_root`, `gn_root`, `block1/unit1/conv1` and so on.
D width, H heads, h head width, P x Q pixels a patch, C channels, K classes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import WeightsError
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import CENTERED, Preprocessing
from vitral.models.attention import Attention
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import HeadConfig, LinearHead, NoHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.pool import AttentionPool, ClassPool, MeanPool, PoolConfig
from vitral.models.position import Learned1d, PositionConfig, SinCos2d
from vitral.models.resnet import BaseResnet
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    Checkpoint,
    DetectedModel,
    FileSettings,
    Format,
    numbered_classes,
    tensor_shape,
    unnamed_classes,
)
from vitral.weights.formats.npz import write_npz
from vitral.weights.formats.rules import (
    Rule,
    UnitNames,
    Weights,
    count_units,
    mapped,
    position_rules,
    same,
    unit_parts,
)
from vitral.weights.formats.support import Supported

ROOT = "conv_root/kernel"
UNIT = re.compile(r"block(\d{1,3})/unit(\d{1,3})/")
UNIT_NAMES = UnitNames(("conv1", "gn1"), ("conv2", "gn2"), ("conv3", "gn3"), ("conv_proj", "gn_proj"))


def body_rules(body: BaseResnet, ours: str) -> list[Rule]:
    """The rules of a body."""
    rules = conv_norm(f"{ours}.root", "conv_root", "gn_root")
    for part in unit_parts(body, ours, UNIT_NAMES):
        other = f"block{part.stage + 1}/unit{part.unit + 1}"
        rules += conv_norm(part.ours, f"{other}/{part.conv}", f"{other}/{part.norm}")
    return rules


def conv_norm(ours: str, conv: str, norm: str) -> list[Rule]:
    return [
        mapped(f"{ours}.0.weight", f"{conv}/kernel", to_convolution, to_kernel),
        same(f"{ours}.1.weight", f"{norm}/scale"),
        same(f"{ours}.1.bias", f"{norm}/bias"),
    ]


def body_layers(names: Iterable[str]) -> tuple[int, ...]:
    """How many units each stage has, by the names of the tensors; none where the root is all."""
    return count_units(names, UNIT, 1)


def to_convolution(kernel: Tensor) -> Tensor:
    """A kernel (P, Q, C, D) as torch has it, (D, C, P, Q)."""
    return kernel.permute(3, 2, 0, 1).contiguous()


def to_kernel(weight: Tensor) -> Tensor:
    """The way back."""
    return weight.permute(2, 3, 1, 0).contiguous()


BLOCK = "Transformer/encoderblock"
EMBEDDING, PROBE = "embedding/kernel", "MAPHead_0/probe"


class Layout(NamedTuple):
    """What differs between the two layouts: the numbers of a block's parts, and where the positions are."""

    attention: str
    mlp: str
    mlp_norm: str
    table: str

    def query(self, block: str) -> str:
        """The kernel that tells the heads of a block."""
        return f"{block}/{self.attention}/query/kernel"


ORIGINAL = Layout(
    "MultiHeadDotProductAttention_1", "MlpBlock_3", "LayerNorm_2", "Transformer/posembed_input/pos_embedding"
)
BIG_VISION = Layout("MultiHeadDotProductAttention_0", "MlpBlock_0", "LayerNorm_1", "pos_embedding")


def google_rules(model: Vit, names: Layout) -> list[Rule]:
    """The rules of a whole model in one of the layouts."""
    assert isinstance(model.mixer, Attention)
    heads = model.mixer.heads
    rules = body_rules(model.stem, "stem.body") if isinstance(model.stem, Hybrid) else []
    rules += [
        _stem_rule("stem.project.weight", EMBEDDING, model.stem.patch),
        same("stem.project.bias", "embedding/bias"),
    ]
    rules += position_rules(model, ["cls"] * model.tokens.cls, names.table)
    for layer in range(model.depth):
        own, other = f"blocks.{layer}", f"{BLOCK}_{layer}"
        rules += norm_rules(f"{own}.mixer_norm", f"{other}/LayerNorm_0") + norm_rules(
            f"{own}.mlp_norm", f"{other}/{names.mlp_norm}"
        )
        maps = [f"{other}/{names.attention}/{part}" for part in ("query", "key", "value")]
        rules += qkv_rules(f"{own}.mixer.heads.qkv", maps, heads)
        rules += projection_rules(f"{own}.mixer.project", f"{other}/{names.attention}/out", heads)
        rules += mlp_rules(f"{own}.mlp", f"{other}/{names.mlp}")
    rules += norm_rules("norm", "Transformer/encoder_norm")
    if isinstance(model.pool, AttentionPool):
        rules += pool_rules(heads)
    if isinstance(model.head, TanhHead):
        rules += dense_rules("head.hidden", "pre_logits") + dense_rules("head.classifier.linear", "head")
    elif isinstance(model.head, LinearHead):
        rules += dense_rules("head.linear", "head")
    return rules


def pool_rules(heads: int) -> list[Rule]:
    """The learned query that gathers."""
    attention = "MAPHead_0/MultiHeadDotProductAttention_0"
    return [
        same("pool.query", PROBE),
        *qkv_rules("pool.q", [f"{attention}/query"], heads),
        *qkv_rules("pool.kv", [f"{attention}/key", f"{attention}/value"], heads),
        *projection_rules("pool.project", f"{attention}/out", heads),
        *norm_rules("pool.norm", "MAPHead_0/LayerNorm_0"),
        *mlp_rules("pool.mlp", "MAPHead_0/MlpBlock_0"),
    ]


def norm_rules(ours: str, theirs: str) -> list[Rule]:
    return [same(f"{ours}.weight", f"{theirs}/scale"), same(f"{ours}.bias", f"{theirs}/bias")]


def mlp_rules(ours: str, theirs: str) -> list[Rule]:
    """Kernels (D, M) and (M, D)."""
    return dense_rules(f"{ours}.expand", f"{theirs}/Dense_0") + dense_rules(f"{ours}.contract", f"{theirs}/Dense_1")


def dense_rules(ours: str, theirs: str) -> list[Rule]:
    """A kernel (inputs, outputs) and its bias."""
    kernel = mapped(f"{ours}.weight", f"{theirs}/kernel", _turned, _turned)
    return [kernel, same(f"{ours}.bias", f"{theirs}/bias")]


def qkv_rules(ours: str, theirs: Sequence[str], heads: int) -> list[Rule]:
    """Maps to heads, kernels (D, H, h) and biases (H, h), which stand above one another in ours."""

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([kernel.flatten(1).mT for kernel in found])]  # (maps H h, D)

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [part.mT.unflatten(1, (heads, -1)) for part in own[0].chunk(len(theirs))]  # each (D, H, h)

    def read_bias(found: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat([bias.flatten() for bias in found])]  # (maps H h)

    def write_bias(own: Sequence[Tensor]) -> Sequence[Tensor]:
        return [part.unflatten(0, (heads, -1)) for part in own[0].chunk(len(theirs))]  # each (H, h)

    return [
        Rule((f"{ours}.weight",), tuple(f"{name}/kernel" for name in theirs), read, write),
        Rule((f"{ours}.bias",), tuple(f"{name}/bias" for name in theirs), read_bias, write_bias),
    ]


def projection_rules(ours: str, theirs: str, heads: int) -> list[Rule]:
    """The map from heads, a kernel (H, h, D), and its bias."""

    def read(kernel: Tensor) -> Tensor:
        return _turned(kernel.flatten(0, 1))  # (D, H h)

    def write(weight: Tensor) -> Tensor:
        return weight.mT.unflatten(0, (heads, -1))  # (H, h, D)

    return [mapped(f"{ours}.weight", f"{theirs}/kernel", read, write), same(f"{ours}.bias", f"{theirs}/bias")]


def _stem_rule(ours: str, theirs: str, patch: Size) -> Rule:
    """A kernel (P, Q, C, D)."""

    def read(kernel: Tensor) -> Tensor:
        return to_convolution(kernel).flatten(1)  # (D, C P Q)

    def write(weight: Tensor) -> Tensor:
        return to_kernel(weight.unflatten(1, (-1, *patch)))  # (P, Q, C, D)

    return mapped(ours, theirs, read, write)


def _turned(weight: Tensor) -> Tensor:
    return weight.mT.contiguous()


EPS = 1e-6  # of every norm


PREFIXES = ("", "opt/target/", "params/", "params/img/")
LAYER = re.compile(BLOCK + r"_(\d{1,6})/")
TABLES = (ORIGINAL.table, "Transformer/pos_embedding", BIG_VISION.table)  # the second was big_vision's before 2022
NORM = re.compile(r"(.*/)?gn\w+/(scale|bias)")
SIDE = 224  # of the images of models that do not tell theirs
TOWER, TRAINING = "belongs to another tower", "belongs to the training, not to the model"


class Google(Format):
    """A Vision Transformer or a hybrid of google-research/vision_transformer."""

    library: ClassVar[str] = "google"
    package: ClassVar[str] = "big_vision"  # which is on no index
    name: ClassVar[str] = "google"
    title: ClassVar[str] = "Google's Vision Transformer"
    names: ClassVar[Layout] = ORIGINAL
    supported: ClassVar[Supported] = Supported(
        hybrid=True, position_cls=True, resampling="bilinear", qkv_bias=True, gelu="tanh", eps=EPS
    )

    def matches(self, ckpt: Checkpoint) -> bool:
        prefix = _prefix(ckpt.tensors)
        blocks = [name for name in ckpt.tensors if name.startswith(prefix + BLOCK)]
        return prefix + EMBEDDING in ckpt.tensors and any(f"/{self.names.attention}/" in name for name in blocks)

    def detect(self, ckpt: Checkpoint, settings: FileSettings) -> DetectedModel:
        dropped, tensors = _outside(ckpt.tensors), _tidied(ckpt.tensors, self.names)
        ckpt = ckpt._replace(tensors=tensors)
        width, stem, channels = _stem(ckpt)
        tokens = Tokens(cls="cls" in tensors)
        image, position = _places(ckpt, tokens, stem, settings, self.names)
        head, unused = _head(ckpt, towers=TOWER in dropped.values())
        model = Vit(  # what is not said here is the paper's, which Vit has by itself
            image_size=image,
            channels=channels,
            width=width,
            depth=1 + max((int(match[1]) for match in map(LAYER.match, tensors) if match), default=0),
            stem=stem,
            tokens=tokens,
            position=position,
            mixer=Attention(heads=_heads(ckpt, width, self.names)),
            mlp=Mlp(ratio=tensor_shape(ckpt, f"{BLOCK}_0/{self.names.mlp}/Dense_0/kernel", 2)[1] / width),
            pool=_pool(ckpt),
            head=head,
        )
        assumed = [] if isinstance(position, Learned1d) or settings.get("image_size") else [f"images of {image}"]
        classes = () if isinstance(head, NoHead) else numbered_classes(head.num_classes)
        assumed += unnamed_classes(len(classes))
        return DetectedModel(
            self.title,
            model,
            Preprocessing(image_size=image, decoding=Decoding(channels=channels)),
            classes,
            {name: tensor for name, tensor in tensors.items() if name not in unused},
            dropped | unused,
            tuple(assumed),
        )

    def rules(self, model: Vit) -> list[Rule]:
        return google_rules(model, self.names)

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        stem = model.stem
        if isinstance(stem, Hybrid):
            if not stem.project:
                yield f"stem.project: {self.title} projects the output of the ResNet to the width"
            if stem.standardization != "std":
                yield f"stem.standardization: {self.title} adds eps to the std, not to the {stem.standardization}"
            if stem.group_eps != EPS:
                yield f"stem.group_eps: {self.title} has {EPS:g}, this model {stem.group_eps:g}"
        yield from self._pool_faults(model)
        if bundle.preprocessing.normalize != CENTERED:
            yield f"preprocessing.normalize: {self.title} takes pixels from -1 to 1, and the file cannot say otherwise"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        return {"model.npz": write_npz(tensors)}

    def import_library(self, model: Vit) -> Any:
        raise ImportError(f"the code of {self.title} is not a package, so there is nothing to compare with")

    def _pool_faults(self, model: Vit) -> Iterator[str]:
        pool, big_vision = model.pool, self.names is BIG_VISION
        if isinstance(pool, AttentionPool) and big_vision:
            if pool.num_heads(model.context()) != model.context().heads:
                yield "pool.heads: big_vision gathers with as many heads as the layers have"
        elif not isinstance(pool, ClassPool) and not (isinstance(pool, MeanPool) and not pool.normalizes()):
            yield f"pool: {self.title} pools the class token or the mean of normed patches, this model has {pool.kind}"
        if model.tokens.cls and not isinstance(pool, ClassPool):
            yield "tokens.cls: Google's ViT has a class token only to pool it"


class BigVision(Google):
    """A plain Vision Transformer of big_vision."""

    name: ClassVar[str] = "big_vision"
    names: ClassVar[Layout] = BIG_VISION
    title: ClassVar[str] = "big_vision's Vision Transformer"
    supported: ClassVar[Supported] = Google.supported._replace(
        hybrid=False, position_cls=False, positions=("learned1d", "sincos2d")
    )


def _prefix(tensors: Weights) -> str:
    """What stands before the model's names."""
    return next((prefix for prefix in PREFIXES if prefix + EMBEDDING in tensors), "")


def _outside(tensors: Weights) -> dict[str, str]:
    """The tensors that are not the model's, and why."""
    prefix = _prefix(tensors)
    others = [name for name in tensors if not name.startswith(prefix)]
    return {name: TOWER if name.startswith("params/") and "/" in name[7:] else TRAINING for name in others}


def _tidied(tensors: Weights, names: Layout) -> dict[str, Tensor]:
    """The model's tensors in float32 by the names of this layout, where files have several ways to keep one thing."""
    prefix, found = _prefix(tensors), dict[str, Tensor]()
    for full, given in tensors.items():
        name = full.removeprefix(prefix)
        if not full.startswith(prefix):
            continue
        tensor = given.float() if given.is_floating_point() else given
        if name.startswith(BLOCK + "/") and tensor.ndim:  # a part of all layers in one tensor
            found |= {name.replace(BLOCK, f"{BLOCK}_{layer}", 1): part for layer, part in enumerate(tensor.unbind())}
        elif NORM.fullmatch(name) and tensor.shape[:-1] == (1, 1, 1):  # in the paper's hybrids
            found[name] = tensor.flatten()
        else:
            found[names.table if name in TABLES else name] = tensor
    return found


def _stem(ckpt: Checkpoint) -> tuple[int, StemConfig, int]:
    """The width, the stem and its channels."""
    height, wide, channels, width = tensor_shape(ckpt, EMBEDDING, 4)
    patch = Size(height, wide)
    if ROOT not in ckpt.tensors:
        return width, Patches(patch=patch), channels
    _, _, channels, root = tensor_shape(ckpt, ROOT, 4)
    return width, Hybrid(layers=body_layers(ckpt.tensors), root=root, patch=patch), channels


def _places(
    ckpt: Checkpoint, tokens: Tokens, stem: StemConfig, settings: FileSettings, names: Layout
) -> tuple[Size, PositionConfig]:
    """The image size and the positions."""
    if names.table not in ckpt.tensors and names is BIG_VISION:
        return Size.parse(settings.get("image_size") or str(SIDE)), SinCos2d()
    rows = tensor_shape(ckpt, names.table, 3)[1]
    token = stem.token_size()
    image, others = settings.infer_image_size(rows, (0, 1) if tokens.cls else (0,), token, ckpt)
    return image, Learned1d(cls=others > 0)


def _heads(ckpt: Checkpoint, width: int, names: Layout) -> int:
    query = names.query(f"{BLOCK}_0")
    inputs, heads, each = tensor_shape(ckpt, query, 3)
    if inputs != width or heads * each != width:
        message = f"{query} has shape {(inputs, heads, each)}, expected ({width}, heads, {width} / heads)"
        hint = "give the file as Google's code wrote it"
        raise WeightsError(message, code="weights.shape_mismatch", where=ckpt.path, hint=hint)
    return heads


def _pool(ckpt: Checkpoint) -> PoolConfig:
    if PROBE in ckpt.tensors:
        return AttentionPool()
    return ClassPool() if "cls" in ckpt.tensors else MeanPool()


def _head(ckpt: Checkpoint, towers: bool) -> tuple[HeadConfig, dict[str, str]]:
    """The head, and the tensors that are of none."""
    ends = {name for name in ckpt.tensors if name.split("/")[0] in ("head", "pre_logits")}
    if towers:
        return NoHead(), dict.fromkeys(sorted(ends), "leads into the space of another tower")
    if "head/kernel" not in ends:
        hidden = [name for name in sorted(ends) if name.startswith("pre_logits/")]
        return NoHead(), dict.fromkeys(hidden, "leads to a head that is not in the file")
    hidden_width, classes = tensor_shape(ckpt, "head/kernel", 2)
    if "pre_logits/kernel" not in ends:
        return LinearHead(num_classes=classes), {}
    same_width = hidden_width == tensor_shape(ckpt, EMBEDDING, 4)[3]
    return TanhHead(num_classes=classes, hidden="width" if same_width else hidden_width), {}
