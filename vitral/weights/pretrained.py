"""Published weights by short name: `dinov2-small` is `hf:facebook/dinov2-small`.

Listed are weights on the Hugging Face hub whose main branch has a safetensors file of a format that Vitral opens.
Licenses are those that the hub or timm states for the weights, and `unknown` where neither does. OpenAI's own CLIP B/32
and B/16 and facebook's own DINO have only pickles there, so other copies are listed.
"""

from collections.abc import Iterable
from dataclasses import dataclass, fields
from fnmatch import fnmatchcase
from html import escape
from typing import Literal

COLUMNS = ("name", "model", "parameters", "download", "license", "good for")

License = Literal["apache-2.0", "cc-by-nc-4.0", "dinov3-license", "mit", "unknown"]


@dataclass(frozen=True)
class PretrainedWeights:
    """Published weights: `vitral.load(weights.name)` downloads and opens them."""

    name: str
    hub_id: str  # owner and name on the Hugging Face hub
    architecture: str  # the size and the patch of the Vision Transformer, as `create_model` names them
    parameters: int  # of the Vision Transformer that is loaded; the file may hold a text tower too
    megabytes: int  # of the file that is downloaded
    license: License
    good_for: str
    image_size: int = 224  # of the preprocessing that comes with the weights

    @property
    def source(self) -> str:
        """The name with which any command opens them: `hf:owner/name`."""
        return f"hf:{self.hub_id}"

    def to_dict(self) -> dict[str, str | int]:
        """The fields by name, for JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def row(self) -> tuple[str, ...]:
        """The cells of a table, in the order of `COLUMNS`."""
        return (
            self.name,
            self.architecture,
            f"{self.parameters / 1e6:.1f} M",
            f"{self.megabytes:,} MB",
            self.license,
            self.good_for,
        )


class PretrainedList(tuple[PretrainedWeights, ...]):
    """Published weights, shown as a table by `print` and in a notebook."""

    __slots__ = ()

    def __repr__(self) -> str:
        rows = [COLUMNS, *(weights.row() for weights in self)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)

    def _repr_html_(self) -> str:
        head = _html_row("th", (*COLUMNS, "source"))
        body = "".join(_html_row("td", (*weights.row(), weights.source)) for weights in self)
        return f"<table><thead>{head}</thead><tbody>{body}</tbody></table>"


def _html_row(tag: str, cells: Iterable[str]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"


APACHE: License = "apache-2.0"
FEATURES = "features for k-NN and few photos"
CLEAN_MAPS = "features with clean attention maps"
DENSE = "dense features; gated on the hub"
FINETUNE = "fine-tuning; ImageNet-1k classes"
FINETUNE_21K = "fine-tuning; 21,843 classes"
PAPER = "fine-tuning, as in the paper"
BASELINE = "a baseline; ImageNet-1k classes"
MASKED = "fine-tuning on many images"
OBJECTS = "attention maps of objects, k-NN"
SEARCH = "image search, linear probes"

# name, hub id, architecture, parameters, megabytes, license, good for
_ROWS: tuple[tuple[str, str, str, int, int, License, str], ...] = (
    ("dinov2-small", "facebook/dinov2-small", "S/14", 22_056_192, 88, APACHE, FEATURES),
    ("dinov2-base", "facebook/dinov2-base", "B/14", 86_579_712, 346, APACHE, FEATURES),
    ("dinov2-large", "facebook/dinov2-large", "L/14", 304_367_616, 1217, APACHE, FEATURES),
    ("dinov2-small-reg", "facebook/dinov2-with-registers-small", "S/14", 22_057_728, 88, APACHE, CLEAN_MAPS),
    ("dinov2-base-reg", "facebook/dinov2-with-registers-base", "B/14", 86_582_784, 346, APACHE, CLEAN_MAPS),
    ("dinov2-large-reg", "facebook/dinov2-with-registers-large", "L/14", 304_371_712, 1217, APACHE, CLEAN_MAPS),
    ("dinov3-small", "facebook/dinov3-vits16-pretrain-lvd1689m", "S/16", 21_600_768, 86, "dinov3-license", DENSE),
    ("dinov3-base", "facebook/dinov3-vitb16-pretrain-lvd1689m", "B/16", 85_668_864, 343, "dinov3-license", DENSE),
    ("dinov3-large", "facebook/dinov3-vitl16-pretrain-lvd1689m", "L/16", 303_153_152, 1213, "dinov3-license", DENSE),
    ("augreg-ti16", "timm/vit_tiny_patch16_224.augreg_in21k_ft_in1k", "Ti/16", 5_717_416, 23, APACHE, FINETUNE),
    ("augreg-s16", "timm/vit_small_patch16_224.augreg_in21k_ft_in1k", "S/16", 22_050_664, 88, APACHE, FINETUNE),
    ("augreg-b32", "timm/vit_base_patch32_224.augreg_in21k_ft_in1k", "B/32", 88_224_232, 353, APACHE, FINETUNE),
    ("augreg-b16", "timm/vit_base_patch16_224.augreg_in21k_ft_in1k", "B/16", 86_567_656, 346, APACHE, FINETUNE),
    ("augreg-l16", "timm/vit_large_patch16_224.augreg_in21k_ft_in1k", "L/16", 304_326_632, 1217, APACHE, FINETUNE),
    ("augreg-b16-in21k", "timm/vit_base_patch16_224.augreg_in21k", "B/16", 102_595_923, 410, APACHE, FINETUNE_21K),
    ("vit-b16", "google/vit-base-patch16-224", "B/16", 86_567_656, 346, APACHE, FINETUNE),
    ("vit-b16-in21k", "google/vit-base-patch16-224-in21k", "B/16", 85_798_656, 346, APACHE, PAPER),
    ("deit-tiny", "timm/deit_tiny_patch16_224.fb_in1k", "Ti/16", 5_717_416, 23, APACHE, BASELINE),
    ("deit-small", "timm/deit_small_patch16_224.fb_in1k", "S/16", 22_050_664, 88, APACHE, BASELINE),
    ("deit-base", "timm/deit_base_patch16_224.fb_in1k", "B/16", 86_567_656, 346, APACHE, BASELINE),
    ("mae-base", "timm/vit_base_patch16_224.mae", "B/16", 85_798_656, 343, "cc-by-nc-4.0", MASKED),
    ("mae-large", "timm/vit_large_patch16_224.mae", "L/16", 303_301_632, 1213, "cc-by-nc-4.0", MASKED),
    ("dino-s16", "timm/vit_small_patch16_224.dino", "S/16", 21_665_664, 87, APACHE, OBJECTS),
    ("dino-b16", "timm/vit_base_patch16_224.dino", "B/16", 85_798_656, 343, APACHE, OBJECTS),
    ("clip-b32", "laion/CLIP-ViT-B-32-laion2B-s34B-b79K", "B/32", 87_456_000, 605, "mit", SEARCH),
    ("clip-l14", "openai/clip-vit-large-patch14", "L/14", 303_179_776, 1711, "unknown", SEARCH),
    ("clip-b32-in1k", "timm/vit_base_patch32_clip_224.openai_ft_in1k", "B/32", 88_225_000, 353, APACHE, FINETUNE),
    ("clip-b16-in1k", "timm/vit_base_patch16_clip_224.openai_ft_in1k", "B/16", 86_568_424, 346, APACHE, FINETUNE),
    ("siglip-b16", "google/siglip-base-patch16-224", "B/16", 92_884_224, 813, APACHE, SEARCH),
    ("siglip2-b16", "google/siglip2-base-patch16-224", "B/16", 92_884_224, 1501, APACHE, SEARCH),
)  # fmt: skip
PRETRAINED = {row[0]: PretrainedWeights(*row) for row in _ROWS}


def list_pretrained(pattern: str = "*") -> PretrainedList:
    """The published weights whose short name matches a shell pattern: `list_pretrained("dinov2-*")`."""
    return PretrainedList(weights for name, weights in PRETRAINED.items() if fnmatchcase(name, pattern))


def published_weights(architecture: str) -> str:
    """The short name of published weights of an architecture, with AugReg's first; empty where there are none."""
    found = [name for name, weights in PRETRAINED.items() if weights.architecture == architecture]
    return min(found, key=lambda name: not name.startswith("augreg"), default="")
