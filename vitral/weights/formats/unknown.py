"""The error for a file that no format reads: what it looks like, the nearest known layout, the tensors that differ."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from typing import Any, NamedTuple

from vitral.core.config import override
from vitral.core.errors import ConfigError, WeightsError
from vitral.models.vit import Vit
from vitral.weights.formats.counterpart import setting_value
from vitral.weights.formats.foreign import ARCHITECTURES, OTHERS, identify
from vitral.weights.formats.format import Checkpoint, Format, infer_sizes
from vitral.weights.formats.rules import TABLE, number_pattern, written_tensors

SHOWN = 3  # tensors of each sort that a message names
LEAST_TENSORS, MOST_LEVELS = 8, 3  # of a model within a file, and of the prefix of its names
LEAST = 0.15  # of a layout's names that a file must have to be called near to it
# What a format says of a file that has its marks and is of another architecture.
FAULTS = ("missing_tensor", "unexpected_tensor", "shape_mismatch", "wrong_type", "missing_setting", "bad_setting",
          "bad_config", "ambiguous", "unsupported")  # fmt: skip
OTHER_LAYOUT = "if it is a Vision Transformer with names of its own, write rules for them, see docs/weights.md"
SMALL: dict[str, Any] = {
    "image_size": 32,
    "stem.patch": [8, 8],
    "width": 64,
    "depth": 1,
    "mixer.heads": 2,
    "head": "none",
}
Shape = tuple[int, ...]


class NearestLayout(NamedTuple):
    """A format, and the tensors in which a file differs from it, with `*` for the numbers of layers."""

    format: Format
    shared: int
    missing: list[str]
    surplus: list[str]
    shapes: list[str]  # of another shape, with both

    def describe(self) -> str:
        """The differences, the first few of each sort by name."""
        parts = [f"its nearest known layout is {self.format.name}, with {self.shared} tensor names in common"]
        for sort, names in (("missing", self.missing), ("surplus", self.surplus), ("of another shape", self.shapes)):
            if names:
                parts.append(f"{len(names)} {sort}: {', '.join(names[:SHOWN])}{', ...' * (len(names) > SHOWN)}")
        return "; ".join(parts)


def unknown_format(ckpt: Checkpoint, formats: Sequence[Format]) -> WeightsError:
    """The error for a file that none of the formats reads."""
    if keys := inner_sets(ckpt, formats):
        shown, key = ", ".join(f"{title} under {key}" for key, title in keys[:SHOWN]), keys[0][0]
        outside = sorted(name for name in ckpt.tensors if not name.startswith(tuple(f"{key}." for key, _ in keys)))
        others = f", and {len(outside)} other tensors, such as {', '.join(outside[:SHOWN])}" if outside else ""
        message = f"not the weights of one model alone: it holds {shown}{others}"
        hint = f"choose it: --weights-key {key}, or weights_key={key!r} in Python"
        return ckpt.error(message, "weights.unknown_format", hint)
    found, near, names = identify(ckpt.tensors, (*ARCHITECTURES, *OTHERS)), nearest_layout(ckpt, formats), ckpt.tensors
    some = f"it has {len(names)} tensors, such as {', '.join(sorted(names)[:SHOWN])}" if names else "it has no tensors"
    fields = [f"{name} {ckpt.config[name]!r}" for name in ("model_type", "architecture") if name in ckpt.config]
    kind = f" ({', '.join(fields)} in config.json)" if fields else ""
    message = f"not a Vision Transformer that is known here{kind}: {found.text if found else some}"
    message += f"; {near.describe() if near else 'no known layout has names like these'}"
    hint = found.hint if found else f"{OTHER_LAYOUT}: {ckpt.convert_command('--map rules.yaml')}"
    return ckpt.error(message, "weights.unknown_format", hint)


def inner_sets(ckpt: Checkpoint, formats: Sequence[Format]) -> list[tuple[str, str]]:
    """What a file without nesting holds below a prefix of its names: the prefix, and the title of the format."""
    if ckpt.config or identify(ckpt.tensors, (*ARCHITECTURES, *OTHERS)) is not None:
        return []
    found, below = list[tuple[str, str]](), list(dict.fromkeys(name.partition(".")[0] for name in ckpt.tensors))
    while below:
        key = below.pop(0)
        names = {
            name.removeprefix(f"{key}."): each for name, each in ckpt.tensors.items() if name.startswith(f"{key}.")
        }
        if len(names) < LEAST_TENSORS or key.count(".") >= MOST_LEVELS:
            continue
        inner = ckpt._replace(tensors=names)
        if title := next((format.title for format in formats if format.matches(inner)), ""):
            found.append((key, title))
        else:
            below += dict.fromkeys(f"{key}.{name.partition('.')[0]}" for name in names)
    return found


def explain_fault(ckpt: Checkpoint, formats: Sequence[Format], error: WeightsError) -> WeightsError:
    """The error of reading a file; if its tensors show another architecture, the error says so."""
    if error.code.partition(".")[2] not in FAULTS or identify(ckpt.tensors, ARCHITECTURES) is None:
        return error
    return unknown_format(ckpt, formats)


def nearest_layout(ckpt: Checkpoint, formats: Iterable[Format]) -> NearestLayout | None:
    """The format that has the largest part of its names in a file, if it is near at all."""
    best, score = None, LEAST
    for format in formats:
        known = layout_patterns(format)
        shared = known & {number_pattern(format.short(name)) for name in ckpt.tensors}
        if known and len(shared) / len(known) > score:
            best, score = format, len(shared) / len(known)
    return None if best is None else compare_layout(ckpt, best)


@cache
def layout_patterns(format: Format) -> frozenset[str]:
    """The names of a small model in a format, with `*` for numbers."""
    return frozenset(map(number_pattern, example_layout(format)))


def compare_layout(ckpt: Checkpoint, format: Format) -> NearestLayout:
    """How a file differs from a model of the format; of its own sizes, if its tensors show them."""
    tensors = {format.short(name): tensor for name, tensor in ckpt.tensors.items()}
    patterns = {number_pattern(name) for name in tensors}
    expected, sized = example_layout(format), False
    with suppress(WeightsError, ConfigError, KeyError):
        expected, sized = example_layout(format, _sizes(ckpt._replace(tensors=tensors), format)), True
    known = {number_pattern(name): shape for name, shape in expected.items()}
    surplus = [name for name in patterns - known.keys() if not any(_within(name, each) for each in _named(format))]
    shapes = [
        f"{name} {tuple(tensor.shape)}, expected {_free(known[number_pattern(name)])}"
        for name, tensor in tensors.items()
        if sized and not _fits(tuple(tensor.shape), known.get(number_pattern(name), tuple(tensor.shape)))
    ]
    missing = sorted(known.keys() - patterns)
    return NearestLayout(format, len(patterns & known.keys()), missing, sorted(surplus), shapes)


def _sizes(ckpt: Checkpoint, format: Format) -> dict[str, Any]:
    """The settings that the tensors of a file show."""
    width, channels, patch, _, hidden = infer_sizes(ckpt, format.names)
    image = [2 * patch.height, 2 * patch.width]
    sizes = {"image_size": image, "channels": channels, "stem.patch": list(patch), "width": width}
    return sizes | {"mixer.heads": 1, "mlp.ratio": hidden / width}


def example_layout(format: Format, sizes: Mapping[str, Any] = SMALL) -> dict[str, Shape]:
    """The tensors of one layer and the ends of a model in a format, by short names; 0 in a shape is any number."""
    if not format.names:
        return {}
    model = override(Vit(), SMALL)
    for field, allowed in format.supported.items():
        if setting_value(model, field) not in (None, *allowed):
            together: dict[str, Any] = {"pool": "mean"} if field == "tokens.cls" else {}
            together |= format.stem_settings(SMALL["stem.patch"]) if field == "stem.kind" else {}
            model = override(model, {field: allowed[0], **together})
    model = override(model, {**sizes, **format.stem_settings(sizes["stem.patch"])})
    own = model.build_empty().state_dict()
    found = dict[str, Shape]()
    for rule in format.rules(model, own):
        if not own.keys() >= set(rule.ours):
            continue  # for a part that this model lacks
        for name, tensor in written_tensors([rule], own):
            found[format.short(name)] = _expected(rule.ours, tuple(tensor.shape))
    return found


def _expected(ours: Iterable[str], shape: Shape) -> Shape:
    """A shape, with 0 for the number of positions and of classes."""
    if TABLE in ours:
        return (*(0 for _ in shape[:-1]), shape[-1])
    return (0, *shape[1:]) if any(name.startswith("head.") for name in ours) else shape


def _fits(shape: Shape, expected: Shape) -> bool:
    return len(shape) == len(expected) and all(a == b or not b for a, b in zip(shape, expected, strict=True))


def _free(shape: Shape) -> str:
    return f"({', '.join(str(side or 'any') for side in shape)}{',' * (len(shape) == 1)})"


def _within(name: str, module: str) -> bool:
    return name == module or name.startswith(f"{module}.")


def _named(format: Format) -> Iterator[str]:
    """The names in the table of a format, also of parts that only some models have, with `*` for numbers."""
    for names in (format.names, format.gated_names):
        for each in names.values():
            yield from (name.replace("+", "*") for name in ((each,) if isinstance(each, str) else each))
