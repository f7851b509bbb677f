"""What an export writes, whatever the format."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from vitral.core.activation import Activation
from vitral.core.config import Size
from vitral.core.storage import Storage
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.inference.engines.engine import Precision
from vitral.inference.graph.graph import Graph

BatchSize = int | Literal["dynamic"]
InputSize = Size | Literal["dynamic"]  # of the images that the exported model takes
STORAGE = Storage()


class ExportPlan(NamedTuple):
    """The graph to write, its input and its metadata."""

    graph: Graph
    preprocessing: Preprocessing
    batch_size: BatchSize
    input_size: InputSize
    metadata: Mapping[str, str]  # written into the model file
    precision: Precision
    activation: Activation = "softmax"  # turns logits into probabilities

    @property
    def resizes(self) -> bool:
        """Whether the exported model resizes images; otherwise it takes preprocessed pixels."""
        return self.input_size != self.preprocessing.image_size

    def input_shape(self) -> list[int | str]:
        """The shape of the input, with names for dynamic sides."""
        sides = ("height", "width") if self.input_size == "dynamic" else self.input_size
        return ["batch" if self.batch_size == "dynamic" else self.batch_size, *sides, self.graph.channels]
