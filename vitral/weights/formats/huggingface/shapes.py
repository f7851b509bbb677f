"""What the shapes of tensors tell where there is no config.json."""

from typing import Any, NamedTuple

from vitral.config import Size
from vitral.weights.formats.format import Hints, Raw, layers, shape


class Shapes(NamedTuple):
    """The tensors that show the size of a model, by short names."""

    kernel: str
    hidden: str  # the first map of an MLP
    layer: str  # what stands before a layer's number
    table: str = ""  # of positions, if there is one
    rows: int = 0  # of the table, that are for no patches
    dims: int = 3  # of the table

    def fields(self, raw: Raw, hints: Hints) -> dict[str, Any]:
        """The fields of a config.json; the head count is that of the published models of this width."""
        width, channels, *sides = shape(raw, self.kernel, 4)
        patch = Size(sides[0], sides[1])
        found = {
            "hidden_size": width,
            "num_channels": channels,
            "patch_size": list(patch),
            "num_hidden_layers": layers(raw.tensors, self.layer),
            "num_attention_heads": hints.heads(width, raw),
            "intermediate_size": shape(raw, f"{self.layer}0.{self.hidden}", 2)[0],
        }
        if self.table:
            rows = shape(raw, self.table, self.dims)[-2]
            found["image_size"] = list(hints.grid(rows, (self.rows,), patch, raw)[0])
        return found
