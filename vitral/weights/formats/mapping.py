"""rules.yaml: a layout that no format knows, mapped to our tensors by rules of the user.

`{block}` in a name is the number of a layer, `{block+1}` the same counted from 1; `{stage}` and `{unit}` are those of a
hybrid's ResNet. A rule for a module, such as `norm`, is one for each of its tensors.
"""

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from fnmatch import fnmatchcase
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import torch
from pydantic import Field, field_validator, model_validator
from torch import Tensor

from vitral.core.config import Config
from vitral.core.documents import read_document
from vitral.core.errors import ConfigError, WeightsError, did_you_mean
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.head import NoHead
from vitral.models.registry import model_config
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint, DetectedModel, Format, OracleFiles, assumed_preprocessing
from vitral.weights.formats.rules import Rule, Weights, match_names, number_pattern
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest

PLACEHOLDER = re.compile(r"\{(block|stage|unit)(\+1)?\}")
NOT_RUN = "the file was mapped by rules of the user, and no library was run"
CORRECT = "correct the rules"
Shapes = Sequence[Sequence[int]]


class Reshape(Config):
    """Give a tensor another shape with as many values; -1 is computed."""

    kind: Literal["reshape"] = "reshape"
    shape: tuple[int, ...]

    def apply(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.reshape(self.shape) for tensor in tensors]

    def invert(self, tensors: Sequence[Tensor], shapes: Shapes) -> Sequence[Tensor]:
        return [tensor.reshape(tuple(shape)) for tensor, shape in zip(tensors, shapes, strict=True)]


class Transpose(Config):
    """Order the dimensions of a tensor anew: [1, 0] swaps those of a matrix."""

    kind: Literal["transpose"] = "transpose"
    dims: tuple[int, ...] = (1, 0)

    def apply(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [tensor.permute(self.dims) for tensor in tensors]

    def invert(self, tensors: Sequence[Tensor], shapes: Shapes) -> Sequence[Tensor]:
        order = sorted(range(len(self.dims)), key=lambda place: self.dims[place] % len(self.dims))
        return [tensor.permute(order) for tensor in tensors]


class Concat(Config):
    """Join all tensors along a dimension."""

    kind: Literal["concat"] = "concat"
    dim: int = 0

    def apply(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        return [torch.cat(list(tensors), dim=self.dim)]

    def invert(self, tensors: Sequence[Tensor], shapes: Shapes) -> Sequence[Tensor]:
        return tensors[0].split([shape[self.dim] for shape in shapes], dim=self.dim)


class Split(Config):
    """Divide one tensor along a dimension into parts of these sizes."""

    kind: Literal["split"] = "split"
    sizes: Annotated[tuple[int, ...], Field(min_length=2)]
    dim: int = 0

    def apply(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        if len(tensors) != 1:
            raise RuntimeError(f"expected one tensor, got {len(tensors)}")
        return tensors[0].split(list(self.sizes), dim=self.dim)

    def invert(self, tensors: Sequence[Tensor], shapes: Shapes) -> Sequence[Tensor]:
        return [torch.cat(list(tensors), dim=self.dim)]


Step = Annotated[Reshape | Transpose | Concat | Split, Field(discriminator="kind")]


class TensorRule(Config):
    """Tensors of the file, the steps that are applied to them in turn, and our tensors that hold the result."""

    theirs: Annotated[tuple[str, ...], Field(min_length=1)]
    ours: Annotated[tuple[str, ...], Field(min_length=1)]
    steps: tuple[Step, ...] = ()

    @field_validator("theirs", "ours", mode="before")
    @classmethod
    def _one_or_several(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value

    @model_validator(mode="after")
    def _check_placeholders(self) -> Self:
        for name in (*self.theirs, *self.ours):
            if set(PLACEHOLDER.sub("", name)) & set("{}*+"):
                message = f"{name!r}: expected {{block}}, {{block+1}}, {{stage}} or {{unit}} for numbers"
                raise ConfigError(message, code="config.bad_value")
        found = {tuple(match[1] for match in PLACEHOLDER.finditer(name)) for name in (*self.theirs, *self.ours)}
        if len(found) > 1 or any("+1}" in name for name in self.ours):
            message = f"{self.describe()}: all names need the same placeholders, and those of ours no +1"
            raise ConfigError(message, code="config.bad_value")
        return self

    def describe(self) -> str:
        """The rule by its names."""
        return f"the rule from {', '.join(self.theirs)} to {', '.join(self.ours)}"

    def matches(self, own: Weights) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Our tensors that the rule is for, and theirs, layer by layer."""
        theirs = tuple(map(_starred, self.theirs))
        found = [{names: name for name, names in match_names(own, {_starred(each): theirs})} for each in self.ours]
        complete = [names for names in found[0] if all(names in each for each in found)]
        return [(tuple(each[names] for each in found), names) for names in complete]

    def expand(self, ckpt: Checkpoint, own: Weights) -> Iterator[Rule]:
        """A rule for the tensors of each layer; WeightsError where it does not fit the file or the model."""
        pairs = self.matches(own)
        if not pairs:
            hint = did_you_mean(_starred(self.ours[0]), {number_pattern(name) for name in own}) or CORRECT
            raise ckpt.error(f"{self.describe()}: the model has no such tensor", "weights.bad_map", hint)
        for ours, theirs in pairs:
            if absent := [name for name in theirs if name not in ckpt.tensors]:
                hint = did_you_mean(absent[0], ckpt.tensors) or CORRECT
                raise ckpt.error(f"{self.describe()}: the file has no {absent[0]}", "weights.missing_tensor", hint)
            history, made = self.trace(ckpt, theirs)
            expected = [tuple(own[name].shape) for name in ours]
            if [tuple(each.shape) for each in made] != expected:
                found = f"gives {_shapes(made)}, and {', '.join(ours)} needs {', '.join(map(str, expected))}"
                raise self.misfit(ckpt, theirs, found)
            yield Rule(ours, theirs, self.read, partial(self.write, history))

    def trace(self, ckpt: Checkpoint, theirs: Sequence[str]) -> tuple[list[Shapes], Sequence[Tensor]]:
        """The shapes before each step, and the result without values."""
        history, tensors = list[Shapes](), [ckpt.tensors[name].to("meta") for name in theirs]
        for step in self.steps:
            history.append([tuple(tensor.shape) for tensor in tensors])
            try:
                tensors = list(step.apply(tensors))
            except (RuntimeError, IndexError) as error:
                raise self.misfit(ckpt, theirs, f"cannot {step.kind} {_shapes(tensors)}: {error}") from None
        return history, tensors

    def misfit(self, ckpt: Checkpoint, theirs: Sequence[str], message: str) -> WeightsError:
        """The error for tensors whose shapes do not fit."""
        shapes = ", ".join(f"{name} {tuple(ckpt.tensors[name].shape)}" for name in theirs)
        text = f"{self.describe()}, for {shapes}, {message}"
        return ckpt.error(text, "weights.shape_mismatch", "correct its steps, or the model")

    def read(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Ours from theirs."""
        for step in self.steps:
            tensors = step.apply(tensors)
        return [tensor.contiguous() for tensor in tensors]  # the order in memory would change the last bits of outputs

    def write(self, history: Sequence[Shapes], tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Theirs from ours, by the shapes that they had."""
        for step, shapes in zip(reversed(self.steps), reversed(history), strict=True):
            tensors = step.invert(tensors, shapes)
        return tensors


class WeightMap(Config):
    """A model, and the rules by which it is read from a file. Each tensor is used once, or dropped by its name."""

    model: Vit
    rules: Annotated[tuple[TensorRule, ...], Field(min_length=1)]
    drop: tuple[str, ...] = ()  # names of tensors that the model does not use, with placeholders or *
    preprocessing: Preprocessing | Literal["assumed"] = "assumed"  # whole images, scaled to [-1, 1]
    classes: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _check_classes(self) -> Self:
        count = 0 if isinstance(self.model.head, NoHead) else self.model.head.num_classes
        if self.classes and len(self.classes) != count:
            message = f"{len(self.classes)} names, and the head of the model has {count} classes"
            raise ConfigError(message, code="config.bad_value", where="classes")
        return self

    def dropped(self, ckpt: Checkpoint) -> list[str]:
        """The tensors of a file that are dropped; WeightsError for a name that the file does not have."""
        found = dict[str, None]()
        for each in self.drop:
            names = [name for name in ckpt.tensors if fnmatchcase(name, PLACEHOLDER.sub("*", each))]
            if not names:
                hint = did_you_mean(each, ckpt.tensors) or CORRECT
                raise ckpt.error(f"has no tensor {each}, which is to be dropped", "weights.bad_map", hint)
            found |= dict.fromkeys(names)
        return list(found)

    def expand(self, ckpt: Checkpoint, model: Vit, own: Weights) -> list[Rule]:
        """The rules for all tensors of a file and a model; WeightsError where a tensor is left over."""
        rules = [made for rule in self.rules for made in rule.expand(ckpt, own)]
        ours = Counter(name for rule in rules for name in rule.ours)
        theirs = Counter(name for rule in rules for name in rule.theirs)
        if twice := [name for name, count in (ours + theirs).items() if count > 1]:
            message = f"several rules are for {', '.join(twice[:5])}"
            raise ckpt.error(message, "weights.duplicate_tensor", "leave one of them")
        if missing := _listed(own, ours):
            hint = "add a rule for each, or correct the model"
            raise ckpt.error(f"no rule is for these tensors of the model: {missing}", "weights.missing_tensor", hint)
        if surplus := _listed(ckpt.tensors, theirs):
            message = f"these tensors of the file are neither mapped nor dropped: {surplus}"
            raise ckpt.error(message, "weights.unexpected_tensor", "add a rule for each, or list it under drop")
        return rules

    def record(self) -> str:
        """The rules as JSON, for a certificate; the model is in the bundle."""
        return self.model_dump_json(include={"rules", "drop"})


def read_map(path: str | Path, model: str | Path = "") -> WeightMap:
    """The rules of a YAML or JSON file; the model by its name or file where the rules do not have it."""
    data = read_document(Path(path).expanduser())
    if model and "model" in data:
        message = f"{path} has a model too"
        raise ConfigError(message, code="config.conflict", where="model", hint="leave one of them out")
    given = model or data.get("model", "")
    try:
        if isinstance(given, str | Path) and str(given):
            data["model"] = model_config(given).model_dump(mode="json")
        return WeightMap.parse(data)
    except ConfigError as error:
        where = ", ".join(filter(None, (str(path), error.where)))
        raise ConfigError(error.message, code=error.code, where=where, hint=error.hint) from None


class MappedLayout(Format):
    """A file that is read by rules of the user."""

    library = package = name = "map"
    title = "a layout of your own, mapped by your rules"

    def __init__(self, weight_map: WeightMap) -> None:
        self.map = weight_map

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        model, unused = self.map.model, dict.fromkeys(self.map.dropped(ckpt), "dropped by your rules")
        kept = ckpt._replace(tensors={name: each for name, each in ckpt.tensors.items() if name not in unused})
        preprocessing, assumed = self.map.preprocessing, list[str]()
        if not isinstance(preprocessing, Preprocessing):
            preprocessing = assumed_preprocessing(model.image_size, model.channels)
            assumed = ["whole images, resized and scaled to [-1, 1]: the rules have no preprocessing"]
        found = self.detected(kept, model, preprocessing, assumed, self.map.classes, unused)
        return found._replace(rules=partial(self.map.expand, kept))

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        raise NoOracleError(NOT_RUN)


def mapped_layout(weight_map: WeightMap, format: str) -> MappedLayout:
    """The layout of a map, which replaces any format by name."""
    if format:
        message = f"rules of your own map the file, got the format {format!r} too"
        raise ConfigError(message, code="config.conflict", where="format", hint="leave one of them out")
    return MappedLayout(weight_map)


def _starred(name: str) -> str:
    """A name with the signs of our tables of names."""
    return PLACEHOLDER.sub(lambda match: "+" if match[2] else "*", name)


def _shapes(tensors: Sequence[Tensor]) -> str:
    return ", ".join(str(tuple(tensor.shape)) for tensor in tensors)


def _listed(tensors: Weights, known: Container[str]) -> str:
    """All tensors that are not known, those of the layers together, each with its shape."""
    found: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        if name not in known:
            found.setdefault(f"{number_pattern(name)} {tuple(tensor.shape)}", []).append(name)
    return ", ".join(f"{len(names)} x {each}" if len(names) > 1 else
                     f"{names[0]} {each.partition(' ')[2]}" for each, names in found.items())  # fmt: skip
