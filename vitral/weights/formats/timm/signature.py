"""What the names and shapes of tensors say of an architecture, whatever its depth, classes and image size."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence

OTHER_LAYER = re.compile(r"blocks\.[1-9]\d*\.")
CLASSES = ("head.", "head_dist.", "pre_logits.")  # what follows the pool
# Which dimensions of a tensor follow the depth or the images: rows of tables of positions, channels of images.
FREE_DIMENSIONS = {
    "pos_embed": (1,),
    "embeds.pos_embed": (1, 2),
    "embeds.pos_embed_y": (1,),
    "embeds.pos_embed_x": (1,),
    "rope.freqs": (1,),
    "relative_position_bias_table": (0,),
    "patch_embed.proj.weight": (1,),
    "patch_embed.backbone.stem.conv.weight": (1,),
    "patch_embed.backbone.conv.weight": (1,),
}


def tensor_signature(shapes: Mapping[str, Sequence[int]]) -> str:
    """A hash of all names and shapes of a file, without what fine-tuning and another image size change."""
    kept = [
        (name, free_shape(name, shape))
        for name, shape in sorted(shapes.items())
        if not OTHER_LAYER.match(name) and not name.startswith(CLASSES)
    ]
    return hashlib.sha256(json.dumps(kept).encode()).hexdigest()[:16]


def free_shape(name: str, shape: Sequence[int]) -> list[int]:
    """The shape, with 0 in dimensions that do not tell architectures apart."""
    last = name.rpartition(".")[2]
    free = FREE_DIMENSIONS.get(name, FREE_DIMENSIONS.get(last, ()) if last == "relative_position_bias_table" else ())
    return [0 if dim in free else size for dim, size in enumerate(shape)]
