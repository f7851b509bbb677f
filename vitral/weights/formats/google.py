"""Google's .npz files, as google-research/vision_transformer and big_vision have them.

D width, H heads, h head width, P x Q pixels a patch, C channels, K classes.
"""

import re
from typing import ClassVar

from torch import Tensor

from vitral.config import Size
from vitral.data.decoder.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.errors import WeightsError
from vitral.model.attention import Attention
from vitral.model.head import HeadConfig, LinearHead, NoHead, TanhHead
from vitral.model.mlp import Mlp
from vitral.model.patches import Patches
from vitral.model.pool import AttentionPool, ClassPool, MeanPool, PoolConfig
from vitral.model.position import Learned1d, PositionConfig, SinCos2d
from vitral.model.resnet import cell
from vitral.model.stem import Hybrid, StemConfig
from vitral.model.vit import Tokens, Vit
from vitral.weights.formats.format import Hints, Raw, Recognised, numbered, shape
from vitral.weights.formats.google_files import GoogleFiles
from vitral.weights.formats.google_hybrid import ROOT, body_layers
from vitral.weights.formats.google_rules import BIG_VISION, BLOCK, EMBEDDING, ORIGINAL, PROBE, Names, google_rules
from vitral.weights.formats.rule import Rule, Weights

PREFIXES = ("", "opt/target/", "params/", "params/img/")
LAYER = re.compile(BLOCK + r"_(\d{1,6})/")
TABLES = (ORIGINAL.table, "Transformer/pos_embedding", BIG_VISION.table)  # the second was big_vision's before 2022
NORM = re.compile(r"(.*/)?gn\w+/(scale|bias)")
SIDE = 224  # of the images of models that do not tell theirs
TOWER, TRAINING = "belongs to another tower", "belongs to the training, not to the model"


class Google(GoogleFiles):
    """A Vision Transformer or a hybrid of google-research/vision_transformer."""

    name: ClassVar[str] = "google"
    names: ClassVar[Names] = ORIGINAL
    owner: ClassVar[str] = "Google"

    def claims(self, raw: Raw) -> bool:
        prefix = _prefix(raw.tensors)
        blocks = [name for name in raw.tensors if name.startswith(prefix + BLOCK)]
        return prefix + EMBEDDING in raw.tensors and any(f"/{self.names.attention}/" in name for name in blocks)

    def recognise(self, raw: Raw, hints: Hints) -> Recognised:
        dropped, tensors = _outside(raw.tensors), _tidied(raw.tensors, self.names)
        raw = raw._replace(tensors=tensors)
        width, stem, channels = _stem(raw)
        tokens = Tokens(cls="cls" in tensors)
        image, position = _places(raw, tokens, stem, hints, self.names)
        head, unused = _head(raw, towers=TOWER in dropped.values())
        model = Vit(  # what is not said here is the paper's, which Vit has by itself
            image=image,
            channels=channels,
            width=width,
            depth=1 + max((int(match[1]) for match in map(LAYER.match, tensors) if match), default=0),
            stem=stem,
            tokens=tokens,
            position=position,
            mixer=Attention(heads=_heads(raw, width, self.names)),
            mlp=Mlp(ratio=shape(raw, f"{BLOCK}_0/{self.names.mlp}/Dense_0/kernel", 2)[1] / width),
            pool=_pool(raw),
            head=head,
        )
        assumed = [] if isinstance(position, Learned1d) or hints.told("image") else [f"images of {image}"]
        classes = () if isinstance(head, NoHead) else numbered(head.classes)
        assumed += [f"its {len(classes):,} classes have no names: numbered"] if classes else []
        return Recognised(
            f"{self.owner}'s Vision Transformer",
            model,
            Preprocessing(image=image, decoding=Decoding(channels=channels)),
            classes,
            {name: tensor for name, tensor in tensors.items() if name not in unused},
            dropped | unused,
            tuple(assumed),
        )

    def rules(self, model: Vit) -> list[Rule]:
        return google_rules(model, self.names)


class BigVision(Google):
    """A plain Vision Transformer of big_vision."""

    name: ClassVar[str] = "big_vision"
    names: ClassVar[Names] = BIG_VISION
    owner: ClassVar[str] = "big_vision"


def _prefix(tensors: Weights) -> str:
    """What stands before the model's names."""
    return next((prefix for prefix in PREFIXES if prefix + EMBEDDING in tensors), "")


def _outside(tensors: Weights) -> dict[str, str]:
    """The tensors that are not the model's, and why."""
    prefix = _prefix(tensors)
    others = [name for name in tensors if not name.startswith(prefix)]
    return {name: TOWER if name.startswith("params/") and "/" in name[7:] else TRAINING for name in others}


def _tidied(tensors: Weights, names: Names) -> dict[str, Tensor]:
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


def _stem(raw: Raw) -> tuple[int, StemConfig, int]:
    """The width, the stem and its channels."""
    height, wide, channels, width = shape(raw, EMBEDDING, 4)
    patch = Size(height, wide)
    if ROOT not in raw.tensors:
        return width, Patches(patch=patch), channels
    _, _, channels, root = shape(raw, ROOT, 4)
    return width, Hybrid(layers=body_layers(raw.tensors), root=root, patch=patch), channels


def _places(raw: Raw, tokens: Tokens, stem: StemConfig, hints: Hints, names: Names) -> tuple[Size, PositionConfig]:
    """The image size and the positions."""
    if names.table not in raw.tensors and names is BIG_VISION:
        return Size.parse(hints.told("image") or str(SIDE)), SinCos2d()
    rows = shape(raw, names.table, 3)[1]
    token = stem.patch if isinstance(stem, Patches) else cell(stem, stem.patch)
    image, others = hints.grid(rows, (0, 1) if tokens.cls else (0,), token, raw)
    return image, Learned1d(cls=others > 0)


def _heads(raw: Raw, width: int, names: Names) -> int:
    query = names.query(f"{BLOCK}_0")
    inputs, heads, each = shape(raw, query, 3)
    if inputs != width or heads * each != width:
        what = f"{query} has shape {(inputs, heads, each)}, expected ({width}, heads, {width} / heads)"
        remedy = "give the file as Google's code wrote it"
        raise WeightsError(what, code="weights.shape_mismatch", where=str(raw.where), remedy=remedy)
    return heads


def _pool(raw: Raw) -> PoolConfig:
    if PROBE in raw.tensors:
        return AttentionPool()
    return ClassPool() if "cls" in raw.tensors else MeanPool()


def _head(raw: Raw, towers: bool) -> tuple[HeadConfig, dict[str, str]]:
    """The head, and the tensors that are of none."""
    ends = {name for name in raw.tensors if name.split("/")[0] in ("head", "pre_logits")}
    if towers:
        return NoHead(), dict.fromkeys(sorted(ends), "leads into the space of another tower")
    if "head/kernel" not in ends:
        hidden = [name for name in sorted(ends) if name.startswith("pre_logits/")]
        return NoHead(), dict.fromkeys(hidden, "leads to a head that is not in the file")
    hidden_width, classes = shape(raw, "head/kernel", 2)
    if "pre_logits/kernel" not in ends:
        return LinearHead(classes=classes), {}
    same_width = hidden_width == shape(raw, EMBEDDING, 4)[3]
    return TanhHead(classes=classes, hidden="width" if same_width else hidden_width), {}
