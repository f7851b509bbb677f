"""Checked fields of config.json and preprocessor_config.json; without config.json, fields from tensor shapes."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.models.mlp import Gelu
from vitral.weights.formats.format import Checkpoint, FileSettings, count_layers, tensor_shape

GELUS: dict[str, Gelu] = {
    "gelu": "erf",
    "gelu_python": "erf",
    "gelu_pytorch_tanh": "tanh",
    "gelu_new": "tanh",
    "quick_gelu": "quick",
}
ACTIVATIONS: dict[Gelu, str] = {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}
WHOLE, POSITIVE = "a whole number from 1 on", "a number above 0"


class Fields(NamedTuple):
    """The fields of a file, or of a part of it. What is null is as if it were not there."""

    data: Mapping[str, Any]
    where: str  # the file, for messages
    hint: str
    path: str = ""  # of a part: `vision_config.`

    def has(self, name: str) -> bool:
        return self.data.get(name) is not None

    def given(self, name: str) -> Any:
        if not self.has(name):
            message = f"{self.path}{name} is missing"
            raise WeightsError(message, code="weights.bad_config", where=self.where, hint=self.hint)
        return self.data[name]

    def wrong(self, name: str, expected: str, code: str = "weights.bad_config") -> WeightsError:
        """The error for a field that is not what it should be."""
        found = repr(self.data.get(name))
        message = f"{self.path}{name}: expected {expected}, got {found[:60]}"
        return WeightsError(message, code=code, where=self.where, hint=self.hint)

    def whole(self, name: str) -> int:
        value = self.given(name)
        if type(value) is not int or value < 1:
            raise self.wrong(name, WHOLE)
        return value

    def count(self, name: str) -> int:
        value = self.given(name)
        if type(value) is not int or value < 0:
            raise self.wrong(name, "a whole number from 0 on")
        return value

    def number(self, name: str) -> float:
        value = self.given(name)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.wrong(name, POSITIVE)
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self.given(name)
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(each) in (int, float) and isfinite(each) for each in values):
            raise self.wrong(name, "numbers")
        return tuple(map(float, values))

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return value

    def size(self, name: str) -> Size:
        try:
            return Size.parse(self.given(name))
        except ConfigError:
            raise self.wrong(name, "a number of pixels, or two") from None

    def gelu(self) -> Gelu:
        """The kind of GELU that `hidden_act` stands for."""
        if self.given("hidden_act") not in list(GELUS):
            raise self.wrong("hidden_act", format_choices(GELUS), "weights.unsupported")
        return GELUS[self.data["hidden_act"]]

    def part(self, name: str, defaults: Mapping[str, Any]) -> "Fields":
        """The fields within a field, which leaves out what the library has as its default."""
        value = self.data.get(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(name, "fields by name")
        return self._replace(data={**defaults, **value}, path=f"{self.path}{name}.")

    def labels(self, classes: int) -> tuple[str, ...] | None:
        """The names of the classes in the order of their labels; None where the file has none."""
        value = self.data.get("id2label")
        if value is None:
            return None
        if not isinstance(value, dict) or sorted(value) != sorted(map(str, range(classes))):
            raise self.wrong("id2label", f"a name for each label from 0 to {classes - 1}, as the classifier has")
        return tuple(str(value[str(label)]) for label in range(classes))


class Shapes(NamedTuple):
    """The tensors that show the size of a model, by short names."""

    kernel: str
    hidden: str  # the first map of an MLP
    layer: str  # what stands before a layer's number
    table: str = ""  # of positions, if there is one
    rows: int = 0  # of the table, that are for no patches
    dims: int = 3  # of the table

    def fields(self, ckpt: Checkpoint, settings: FileSettings) -> dict[str, Any]:
        """The fields of a config.json; the head count is that of the published models of this width."""
        width, channels, *sides = tensor_shape(ckpt, self.kernel, 4)
        patch = Size(sides[0], sides[1])
        found = {
            "hidden_size": width,
            "num_channels": channels,
            "patch_size": list(patch),
            "num_hidden_layers": count_layers(ckpt.tensors, self.layer),
            "num_attention_heads": settings.infer_heads(width, ckpt),
            "intermediate_size": tensor_shape(ckpt, f"{self.layer}0.{self.hidden}", 2)[0],
        }
        if self.table:
            rows = tensor_shape(ckpt, self.table, self.dims)[-2]
            found["image_size"] = list(settings.infer_image_size(rows, (self.rows,), patch, ckpt)[0])
        return found
