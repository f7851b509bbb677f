"""Google's .npz checkpoints, of google-research/vision_transformer and of big_vision.

Kernels have their inputs first. The ResNet of a hybrid is `conv_root`, `gn_root`, `block1/unit1/conv1` and so on.
D width, H heads, h head width, P x Q pixels a patch, C channels.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models.attention import Attention
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import HeadConfig, LinearHead, NoHead, ProjectionHead, TanhHead
from vitral.models.mlp import Mlp
from vitral.models.pool import AttentionPool, ClassPool, MeanPool
from vitral.models.position import Learned1d, PositionConfig, SinCos2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    NPZ,
    PLAIN,
    Checkpoint,
    DetectedModel,
    Format,
    OracleFiles,
    assumed_preprocessing,
)
from vitral.weights.formats.npz import write_npz
from vitral.weights.formats.rules import (
    TABLE,
    TOKENS,
    Names,
    Rule,
    Weights,
    count_units,
    mapped,
    match_names,
    position_rules,
    resnet_names,
    same,
)
from vitral.weights.formats.timm.writer import oracle_arguments
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest

BLOCK = "Transformer/encoderblock"
EMBEDDING, ROOT, PROBE = "embedding/kernel", "conv_root/kernel", "MAPHead_0/probe"
UNIT = re.compile(r"block(\d{1,3})/unit(\d{1,3})/")
LAYER = re.compile(BLOCK + r"_(\d{1,6})/")
NORM = re.compile(r"(.*/)?gn\w+/(scale|bias)")
QKV = ("query", "key", "value")
PREFIXES = ("", "opt/target/", "params/", "params/img/", "img/")
INLINE_POOL = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")  # before MAPHead_0 had them
ORIGINAL_TABLE, BIG_VISION_TABLE = "Transformer/posembed_input/pos_embedding", "pos_embedding"
TABLES = (ORIGINAL_TABLE, "Transformer/pos_embedding", BIG_VISION_TABLE)  # the second was big_vision's before 2022
SIDE = 224  # of the images of models that do not record theirs
TOWER, TRAINING = "belongs to another tower", "belongs to the training, not to the model"
RESNET = resnet_names(
    ("conv_root", "gn_root"),
    "block+/unit+/",
    {
        "reduce": ("conv1", "gn1"),
        "look": ("conv2", "gn2"),
        "expand": ("conv3", "gn3"),
        "shortcut": ("conv_proj", "gn_proj"),
    },
)


def layer_names(attention: str, mlp: str, mlp_norm: str) -> dict[str, str | tuple[str, ...]]:
    """The names of a layer's parts, whose numbers differ between the two layouts."""
    return {
        "blocks.*.mixer_norm": f"{BLOCK}_*/LayerNorm_0",
        "blocks.*.mixer.heads.qkv": tuple(f"{BLOCK}_*/{attention}/{part}" for part in QKV),
        "blocks.*.mixer.project": f"{BLOCK}_*/{attention}/out",
        "blocks.*.mlp_norm": f"{BLOCK}_*/{mlp_norm}",
        "blocks.*.mlp.expand": f"{BLOCK}_*/{mlp}/Dense_0",
        "blocks.*.mlp.contract": f"{BLOCK}_*/{mlp}/Dense_1",
    }


class Google(Format):
    """A Vision Transformer or a hybrid of google-research/vision_transformer."""

    library = name = "google"
    package = "big_vision"  # which is on no index
    title = "Google's Vision Transformer"
    names: ClassVar[Names] = {
        **RESNET,
        **layer_names("MultiHeadDotProductAttention_1", "MlpBlock_3", "LayerNorm_2"),
        "stem.project": "embedding",
        TOKENS: ("cls",),
        TABLE: ORIGINAL_TABLE,
        "norm": "Transformer/encoder_norm",
        "pool.query": PROBE,
        "pool.q": ("MAPHead_0/MultiHeadDotProductAttention_0/query",),
        "pool.kv": tuple(f"MAPHead_0/MultiHeadDotProductAttention_0/{part}" for part in QKV[1:]),
        "pool.project": "MAPHead_0/MultiHeadDotProductAttention_0/out",
        "pool.norm": "MAPHead_0/LayerNorm_0",
        "pool.mlp.expand": "MAPHead_0/MlpBlock_0/Dense_0",
        "pool.mlp.contract": "MAPHead_0/MlpBlock_0/Dense_1",
        "head.hidden": "pre_logits",
        "head.classifier.linear": "head",
        "head.linear": "head",
    }
    supported = PLAIN | {
        "stem.kind": ("patches", "hybrid"),
        "stem.project": (True,),
        "stem.standardization": ("std",),
        "stem.group_eps": (1e-6,),
        "position.cls": (True,),
        "mixer.qkv_bias": (True,),
        "mlp.activation": ("gelu_tanh",),
        "pool.kind": ("cls", "mean"),
        "pool.norm": ("before",),
        "head.kind": ("linear", "tanh", "none"),
        "eps": (1e-6,),
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        prefix, attention = _prefix(ckpt.tensors), self.names["blocks.*.mixer.project"]
        part = f"/{str(attention).split('/')[-2]}/"
        blocks = [name for name in ckpt.tensors if name.startswith(prefix + BLOCK)]
        return prefix + EMBEDDING in ckpt.tensors and any(part in name for name in blocks)

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        unused, table = _outside(ckpt.tensors), str(self.names[TABLE])
        tensors = _tidied(ckpt.tensors, table)
        ckpt = ckpt._replace(tensors=tensors)
        if tensors[EMBEDDING].ndim == 2 and table != ORIGINAL_TABLE:
            message = f"{EMBEDDING} takes flattened patches of images of any shape (NaFlex), which no model here does"
            raise ckpt.error(message, "weights.unsupported")
        height, wide, channels, width = ckpt.shape(EMBEDDING, 4)
        stem: StemConfig = Patches(patch=Size(height, wide))
        if ROOT in tensors:
            _, _, channels, root = ckpt.shape(ROOT, 4)
            stem = Hybrid(layers=count_units(tensors, UNIT, 1), root=root, patch=Size(height, wide))
        tokens = Tokens(cls="cls" in tensors)
        position: PositionConfig = SinCos2d()
        if table in tensors or table == ORIGINAL_TABLE:
            rows, prefixes = ckpt.shape(table, 3)[1], (0, 1)[: 1 + tokens.cls]
            image, others = ckpt.infer_image_size(rows, prefixes, stem.token_size())
            position, assumed = Learned1d(cls=others > 0), list[str]()
        else:
            image = Size.parse(ckpt.setting("image_size") or str(SIDE))
            assumed = [] if ckpt.setting("image_size") else [f"images of {image}"]
        head, not_read = _head(ckpt, towers=TOWER in unused.values())
        expand = str(self.names["blocks.*.mlp.expand"]).replace("*", "0")
        model = Vit(  # the other settings are the paper's, which are the defaults of Vit
            image_size=image,
            channels=channels,
            width=width,
            depth=1 + max((int(match[1]) for match in map(LAYER.match, tensors) if match), default=0),
            stem=stem,
            tokens=tokens,
            position=position,
            mixer=Attention(heads=self._heads(ckpt, width)),
            mlp=Mlp(ratio=ckpt.shape(f"{expand}/kernel", 2)[1] / width),
            pool=AttentionPool() if PROBE in tensors else ClassPool() if tokens.cls else MeanPool(),
            head=head,
        )
        ckpt = ckpt._replace(tensors={name: tensor for name, tensor in tensors.items() if name not in not_read})
        return self.detected(ckpt, model, assumed_preprocessing(image, channels), assumed, unused=unused | not_read)

    def rules(self, model: Vit, own: Weights) -> list[Rule]:
        assert isinstance(model.mixer, Attention)
        rules = position_rules(model, self.names[TOKENS], str(self.names[TABLE]))
        done = {name for rule in rules for name in rule.ours}
        for ours, theirs in match_names((name for name in own if name not in done), self.names):
            if ours == "stem.project.weight":
                rules.append(_stem_rule(ours, EMBEDDING, model.stem.patch))
            else:
                rules.append(_rule(ours, theirs, own[ours].ndim, model.mixer.heads))
        return rules

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.pool, AttentionPool) and model.pool.num_heads(model.context()) != model.context().heads:
            yield "pool.heads: big_vision's pool has as many heads as the layers"
        if model.tokens.cls and not isinstance(model.pool, ClassPool):
            yield "tokens.cls: Google's ViT has a class token only to pool it"
        channels = model.channels
        if bundle.preprocessing.normalize.per_channel(channels) != CENTERED.per_channel(channels):
            yield f"preprocessing.normalize: {self.title} takes pixels from -1 to 1, and the file cannot say otherwise"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        return {"model.npz": write_npz(tensors)}

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        """Google's code is no package, and timm reads its files; it leaves out the hidden layer of a head."""
        if files.original.suffix != NPZ:
            raise NoOracleError("timm reads such files as npz alone, and Google's own code is not a package")
        head, logits = model.head, True
        if isinstance(head, TanhHead):
            head, logits = NoHead(), False
        elif isinstance(head, ProjectionHead) and head.bias:
            head = LinearHead(num_classes=head.width)
        arguments = oracle_arguments(model.model_copy(update={"head": head}))
        return OracleRequest("timm", arguments | {"npz": str(files.original), "logits": logits}, "Google's npz")

    def _heads(self, ckpt: Checkpoint, width: int) -> int:
        query = f"{self.names['blocks.*.mixer.heads.qkv'][0].replace('*', '0')}/kernel"
        inputs, heads, each = ckpt.shape(query, 3)
        if inputs != width or heads * each != width:
            message = f"{query} has shape {(inputs, heads, each)}, expected ({width}, heads, {width} / heads)"
            raise ckpt.error(message, "weights.shape_mismatch", "give the file as Google's code wrote it")
        return heads


class BigVision(Google):
    """A plain Vision Transformer of big_vision."""

    name = "big_vision"
    title = "big_vision's Vision Transformer"
    names: ClassVar[Names] = {
        **Google.names,
        **layer_names("MultiHeadDotProductAttention_0", "MlpBlock_0", "LayerNorm_1"),
        TABLE: BIG_VISION_TABLE,
    }
    supported = Google.supported | {
        "stem.kind": ("patches",),
        "position.kind": ("learned1d", "sincos2d"),
        "position.cls": (False,),
        "pool.kind": ("cls", "mean", "attention"),
    }


def _rule(ours: str, theirs: Sequence[str], dims: int, heads: int) -> Rule:
    """A weight or bias of ours, with so many dimensions, and the tensors of theirs."""
    modules, part = [name.rpartition(".")[0] for name in theirs], ours.rpartition(".")[2]
    to_heads = modules[0].endswith(QKV)
    if part not in ("weight", "bias"):
        return same(ours, theirs[0])
    if part == "bias" and not to_heads:
        return same(ours, f"{modules[0]}/bias")
    if dims == 1 and part == "weight":  # of a norm
        return same(ours, f"{modules[0]}/scale")
    if dims == 4:  # a convolution, (P, Q, C, D) in theirs
        return mapped(ours, f"{modules[0]}/kernel", _to_convolution, _to_kernel)
    from_heads = modules[0].endswith("/out")

    def read(found: Sequence[Tensor]) -> Sequence[Tensor]:
        if part == "bias":
            return [torch.cat([bias.flatten() for bias in found])]  # (maps H h)
        return [torch.cat([(each.flatten(0, 1) if from_heads else each.flatten(1)).mT for each in found])]

    def write(own: Sequence[Tensor]) -> Sequence[Tensor]:
        """Biases (H, h), and kernels (D, H, h) to heads, (H, h, D) from heads, or (inputs, outputs)."""
        turned = [each.mT if part == "weight" else each for each in own[0].chunk(len(modules))]
        if to_heads:
            return [each.unflatten(-1, (heads, -1)) for each in turned]
        return [each.unflatten(0, (heads, -1)) for each in turned] if from_heads else turned

    suffix = "kernel" if part == "weight" else "bias"
    return Rule((ours,), tuple(f"{module}/{suffix}" for module in modules), read, write)


def _stem_rule(ours: str, theirs: str, patch: Size) -> Rule:
    """A kernel (P, Q, C, D) in theirs, a linear map (D, C P Q) in ours."""
    return mapped(
        ours,
        theirs,
        lambda kernel: _to_convolution(kernel).flatten(1),
        lambda weight: _to_kernel(weight.unflatten(1, (-1, *patch))),
    )


def _to_convolution(kernel: Tensor) -> Tensor:
    return kernel.permute(3, 2, 0, 1).contiguous()  # (P, Q, C, D) to (D, C, P, Q)


def _to_kernel(weight: Tensor) -> Tensor:
    return weight.permute(2, 3, 1, 0).contiguous()  # (D, C, P, Q) to (P, Q, C, D)


def _prefix(tensors: Weights) -> str:
    """The prefix of the model's names."""
    return next((prefix for prefix in PREFIXES if prefix + EMBEDDING in tensors), "")


def _outside(tensors: Weights) -> dict[str, str]:
    """The tensors that are not the model's, and why."""
    prefix = _prefix(tensors)
    others = [name for name in tensors if not name.startswith(prefix)]
    towers = [name for name in others if "/" in name.removeprefix("params/") and not name.startswith("opt/")]
    return {name: TOWER if name in towers else TRAINING for name in others}


def _tidied(tensors: Weights, table: str) -> dict[str, Tensor]:
    """The model's tensors in float32 by the names of one layout; files have several ways to store the same thing."""
    prefix, found = _prefix(tensors), dict[str, Tensor]()
    for full, given in tensors.items():
        name = full.removeprefix(prefix)
        if not full.startswith(prefix):
            continue
        if prefix + "probe" in tensors and name.startswith(INLINE_POOL):
            name = f"MAPHead_0/{name}"
        tensor = given.float() if given.is_floating_point() else given
        if name.startswith(BLOCK + "/") and tensor.ndim:  # a part of all layers in one tensor
            found |= {name.replace(BLOCK, f"{BLOCK}_{layer}", 1): part for layer, part in enumerate(tensor.unbind())}
        elif NORM.fullmatch(name) and tensor.shape[:-1] == (1, 1, 1):  # in the paper's hybrids
            found[name] = tensor.flatten()
        else:
            found[table if name in TABLES else name] = tensor
    return found


def _head(ckpt: Checkpoint, towers: bool) -> tuple[HeadConfig, dict[str, str]]:
    """The head, and the tensors that belong to none."""
    ends = {name for name in ckpt.tensors if name.split("/")[0] in ("head", "pre_logits")}
    if towers and "head/kernel" in ends and "pre_logits/kernel" not in ends:
        return ProjectionHead(width=ckpt.shape("head/kernel", 2)[1], bias="head/bias" in ends), {}
    if "head/kernel" not in ends:
        hidden = [name for name in sorted(ends) if name.startswith("pre_logits/")]
        return NoHead(), dict.fromkeys(hidden, "belongs to a head that is not in the file")
    hidden_width, classes = ckpt.shape("head/kernel", 2)
    if "pre_logits/kernel" not in ends:
        return LinearHead(num_classes=classes), {}
    same_width = hidden_width == ckpt.shape(EMBEDDING, 4)[3]
    return TanhHead(num_classes=classes, hidden="width" if same_width else hidden_width), {}
