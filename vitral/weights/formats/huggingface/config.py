"""config.json: checked fields."""

from collections.abc import Mapping
from math import isfinite
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.models.activation import ActivationName
from vitral.weights.formats.format import USE_ANOTHER

# The library's names of what we have, the one that is written first.
ACTIVATIONS: dict[ActivationName, tuple[str, ...]] = {
    "gelu": ("gelu", "gelu_python"),
    "gelu_tanh": ("gelu_pytorch_tanh", "gelu_new", "gelu_fast", "gelu_accurate", "gelu_python_tanh"),
    "quick_gelu": ("quick_gelu",),
    "relu": ("relu",),
    "relu6": ("relu6",),
    "leaky_relu": ("leaky_relu",),
    "silu": ("silu", "swish"),
    "mish": ("mish",),
    "hardswish": ("hardswish",),
    "tanh": ("tanh",),
    "sigmoid": ("sigmoid",),
    "identity": ("linear",),
}
NAMES = {name: activation for activation, names in ACTIVATIONS.items() for name in names}


class Fields(NamedTuple):
    """The fields of a file, or of a part of it. A field that is null counts as missing."""

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
        """The error for a field with another value than expected."""
        found = repr(self.data.get(name))
        message = f"{self.path}{name}: expected {expected}, got {found[:60]}"
        hint = USE_ANOTHER if code == "weights.unsupported" else self.hint  # such a file is as it should be
        return WeightsError(message, code=code, where=self.where, hint=hint)

    def whole(self, name: str, least: int = 1) -> int:
        value = self.given(name)
        if type(value) is not int or value < least:
            raise self.wrong(name, f"a whole number of at least {least}")
        return value

    def number(self, name: str) -> float:
        value = self.given(name)
        if type(value) not in (int, float) or not isfinite(value) or value <= 0:
            raise self.wrong(name, "a number above 0")
        return float(value)

    def numbers(self, name: str) -> tuple[float, ...]:
        value = self.given(name)
        values = value if isinstance(value, list) else [value]
        if not values or not all(type(each) in (int, float) and isfinite(each) for each in values):
            raise self.wrong(name, "numbers")
        return tuple(map(float, values))

    def flag(self, name: str, default: bool) -> bool:
        value = self.data.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(name, "true or false")
        return default if value is None else value

    def size(self, name: str) -> Size:
        """A size of one number or two, or of height and width by name."""
        value = self.given(name)
        if isinstance(value, Mapping):
            if set(value) != {"height", "width"}:
                raise self.wrong(name, "height and width, or shortest_edge")
            part = self.part(name, {})
            return Size(part.whole("height"), part.whole("width"))
        try:
            return Size.parse(value)
        except ConfigError:
            raise self.wrong(name, "a number of pixels, or two") from None

    def activation(self, name: str = "hidden_act") -> ActivationName:
        """The activation that a field names."""
        if self.given(name) not in list(NAMES):
            raise self.wrong(name, format_choices(NAMES), "weights.unsupported")
        return NAMES[self.data[name]]

    def rate(self, name: str) -> float:
        """A rate of dropout, 0 where the field is missing."""
        value = self.data.get(name)
        if value is not None and (type(value) not in (int, float) or not 0 <= value < 1):
            raise self.wrong(name, "a number from 0 to below 1")
        return float(value or 0.0)

    def part(self, name: str, defaults: Mapping[str, Any]) -> "Fields":
        """The fields within a field, completed by the library's defaults."""
        value = self.data.get(name) or {}
        if not isinstance(value, dict):
            raise self.wrong(name, "an object")
        return self._replace(data={**defaults, **value}, path=f"{self.path}{name}.")

    def labels(self, classes: int) -> tuple[str, ...]:
        """The class names in the order of their labels; none where the file has none."""
        value = self.data.get("id2label")
        if value is None:
            return ()
        if not isinstance(value, dict) or sorted(value) != sorted(map(str, range(classes))):
            raise self.wrong("id2label", f"a name for each label from 0 to {classes - 1}, as the classifier has")
        return tuple(str(value[str(label)]) for label in range(classes))
