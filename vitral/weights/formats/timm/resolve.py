"""From a file and the name of its architecture to our model: what the tensors say completes the arguments."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError
from vitral.models.head import LinearHead, TanhHead
from vitral.models.vit import Vit
from vitral.weights.formats.format import CONFIG, Checkpoint, count_layers
from vitral.weights.formats.timm.architectures import Architecture
from vitral.weights.formats.timm.arguments import Arguments
from vitral.weights.formats.timm.beit import beit_model, relpos_model
from vitral.weights.formats.timm.eva import eva_model
from vitral.weights.formats.timm.naflex import naflex_model
from vitral.weights.formats.timm.vit import TimmModel, distilled_model, vit_model

MODELS: dict[str, Callable[[Arguments], TimmModel]] = {
    "vit": vit_model,
    "distilled": distilled_model,
    "eva": eva_model,
    "beit": beit_model,
    "relpos": relpos_model,
    "naflex": naflex_model,
}
REGISTERS = {"eva": "num_reg_tokens"}  # the argument for their number, where it is not `reg_tokens`
RELATIVE_TABLES = (
    "blocks.0.attn.relative_position_bias_table",
    "blocks.0.attn.rel_pos.relative_position_bias_table",
    "rel_pos_bias.relative_position_bias_table",
    "shared_rel_pos.relative_position_bias_table",
)


class Resolved(NamedTuple):
    """The model of a file, and what was assumed or is not carried over."""

    found: TimmModel
    assumptions: tuple[str, ...] = ()


def resolve(ckpt: Checkpoint, kind: str, given: Mapping[str, Any], sizes: Sequence[Size], exact: bool) -> Resolved:
    """The model of a class of timm with these arguments, for the tensors of a file.

    `sizes` are the image sizes that it may have, the likeliest first. An exact name has the depth of the file.
    """
    arguments, notes = dict(given), list[str]()
    depth, stated = count_layers(ckpt.tensors, "blocks."), int(given.get("depth", 12))
    if depth != stated and exact:
        message = f"model_args.depth is {stated}, and {depth} in the tensors"
        raise WeightsError(
            message, code="weights.config_mismatch", where=ckpt.path.parent / CONFIG, hint="download it again"
        )
    if depth != stated:
        notes.append(f"{depth} layers instead of the {stated} of this architecture")
    arguments |= {"depth": depth, "num_classes": class_count(ckpt), "in_chans": channel_count(ckpt, given)}
    if heads := kv_heads(ckpt, arguments):
        arguments["num_kv_heads"] = heads
    if kind == "naflex":
        arguments |= naflex_grid(ckpt)
    else:
        image, note = fit_image(ckpt, kind, arguments, sizes)
        arguments["img_size"] = list(image)
        notes += [note] if note else []
    try:
        found = MODELS[kind](Arguments(arguments))
    except ConfigError as error:
        raise _as_weights_error(ckpt, error) from None
    return Resolved(found._replace(model=with_hidden_layer(ckpt, found.model)), (*notes, *found.notes))


def with_hidden_layer(ckpt: Checkpoint, model: Vit) -> Vit:
    """The model with the hidden layer before the head that older versions of timm have for ImageNet-21k."""
    if (name := "pre_logits.fc.weight") not in ckpt.tensors or not isinstance(model.head, LinearHead):
        return model
    head = TanhHead(num_classes=model.head.num_classes, hidden=ckpt.shape(name, 2)[0])
    return model.model_copy(update={"head": head})


def _as_weights_error(ckpt: Checkpoint, error: ConfigError) -> WeightsError:
    code = "weights.bad_setting" if ckpt.settings else "weights.bad_config"
    code = "weights.unsupported" if error.code == "config.unsupported" else code
    beside = ckpt.path.parent / CONFIG if ckpt.config else ckpt.path
    return WeightsError(error.message, code=code, where=f"{beside}, {error.where}", hint=error.hint)


def class_count(ckpt: Checkpoint) -> int:
    """The classes of the head; 0 without one."""
    return ckpt.shape("head.weight", 2)[0] if "head.weight" in ckpt.tensors else 0


def channel_count(ckpt: Checkpoint, given: Mapping[str, Any]) -> int:
    """The channels of images."""
    if "embeds.proj.weight" in ckpt.tensors:
        patch = Arguments(given).size("patch_size", 16)
        return max(1, ckpt.shape("embeds.proj.weight", 2)[1] // (patch.height * patch.width))
    roots = ("patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight", "patch_embed.proj.weight")
    known = [root for root in roots if root in ckpt.tensors]
    return ckpt.shape(known[0], 4)[1] if known else 3


def kv_heads(ckpt: Checkpoint, given: Mapping[str, Any]) -> list[int]:
    """The heads of k in each layer where some have fewer than q; else nothing."""
    heads, width = int(given.get("num_heads", 12)), int(given.get("embed_dim", 768))
    rows = [
        ckpt.shape(name, 2)[0]
        for layer in range(int(given["depth"]))
        if (name := f"blocks.{layer}.attn.k_proj.weight") in ckpt.tensors
    ]
    return [count * heads // width for count in rows] if any(count != width for count in rows) else []


def naflex_grid(ckpt: Checkpoint) -> dict[str, Any]:
    table = ckpt.tensors.get("embeds.pos_embed")
    return {"pos_embed_grid_size": list(table.shape[1:3])} if table is not None and table.ndim == 4 else {}


class TableCells(NamedTuple):
    """The patches that a table of positions is for."""

    rows: int  # of patches, or of the offsets between them
    cell: Size  # the pixels of one patch
    offsets: bool = False  # whether it has a row for each offset

    def is_for(self, rows: int, columns: int) -> bool:
        return (2 * rows - 1) * (2 * columns - 1) == self.rows if self.offsets else rows * columns == self.rows

    def has(self, image: Size) -> bool:
        return self.is_for(image.height // self.cell.height, image.width // self.cell.width)

    def square(self) -> Size | None:
        """The square image that it is for, if there is one."""
        side = math.isqrt(self.rows)
        side = (side + 1) // 2 if self.offsets else side
        return Size(side * self.cell.height, side * self.cell.width) if side and self.is_for(side, side) else None


def fit_image(ckpt: Checkpoint, kind: str, given: Mapping[str, Any], sizes: Sequence[Size]) -> tuple[Size, str]:
    """The image size that the table of positions was made for, and what was assumed about it."""
    tried = [Size.parse(given["img_size"])] if given.get("img_size") else []
    if setting := ckpt.setting("image_size"):
        tried, sizes = [Size.parse(setting)], ()
    tried += sizes
    cells = table_cells(ckpt, kind, given)
    if cells is None:
        return (tried or [Size(224, 224)])[0], ""
    for size in tried:
        if cells.has(size):
            return size, ""
    if not setting and (image := cells.square()):
        rows = image.height // cells.cell.height
        return image, f"square images, {image}, for {rows}x{rows} patches"
    message = f"{cells.rows} positions do not make one square of patches"
    code = "weights.missing_setting"
    if setting:
        message, code = f"{cells.rows} positions are not for {setting} images", "weights.bad_setting"
    raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH", code)


def table_cells(ckpt: Checkpoint, kind: str, given: Mapping[str, Any]) -> TableCells | None:
    """What the table of positions is for; None without a table."""
    cell = token_size(given)
    if "pos_embed" in ckpt.tensors:
        return TableCells(ckpt.shape("pos_embed", 3)[1] - prefix_rows(kind, given), cell)
    for name in RELATIVE_TABLES:
        if name in ckpt.tensors:
            extra = 3 * bool(kind == "beit" or given.get("class_token"))
            return TableCells(ckpt.shape(name, 2)[0] - extra, cell, offsets=True)
    return None


def prefix_rows(kind: str, given: Mapping[str, Any]) -> int:
    """The rows of the table that are not for patches."""
    if given.get("no_embed_class"):
        return 0
    if kind in ("distilled", "beit"):
        return 1 + (kind == "distilled")
    return int(given.get("class_token", True)) + int(given.get(REGISTERS.get(kind, "reg_tokens"), 0))


def token_size(given: Mapping[str, Any]) -> Size:
    """The pixels that one token covers."""
    arguments = Arguments(given)
    patch, embed = arguments.size("patch_size", 16), given.get("embed_layer")
    stride = 1
    if isinstance(embed, Mapping):
        stride = 4 * 2 ** max(0, len(embed.get("layers", ())) - 1)
    return Size(patch.height * stride, patch.width * stride)


def plausible_grids(cells: int) -> Iterator[tuple[int, int]]:
    """Grids of so many patches, at most twice as wide as high."""
    for rows in range(1, math.isqrt(cells) + 1):
        if cells % rows == 0 and cells // rows <= 2 * rows:
            yield rows, cells // rows


def native_sizes(arch: Architecture) -> list[Size]:
    """The image sizes of the published weights."""
    return [Size(*arch.image_facts(tag)["input_size"][-2:]) for tag in arch.images]
