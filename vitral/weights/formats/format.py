"""What every format promises, and what they have in common."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.registry import SIZES
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.rules import Rule
from vitral.weights.formats.support import Supported, unsupported_parts
from vitral.weights.tensors import safetensors_chunks
from vitral.weights.torch_pickle import SUFFIXES

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"  # files that may lie beside the tensors
HEADS = {scale.width: scale.heads for scale in reversed(SIZES.values())}  # of the published models, by their width


class Checkpoint(NamedTuple):
    """What lies on the disk, before anybody knows what it is."""

    path: Path  # the file that holds the tensors
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]  # of a config.json beside it; empty where there is none
    processor: Mapping[str, Any]  # of a preprocessor_config.json beside it


class DetectedModel(NamedTuple):
    """What a file turned out to be."""

    title: str  # `timm's ViT`
    model: Vit | Resnet
    preprocessing: Preprocessing
    classes: tuple[str, ...]  # of a model with a head
    tensors: Mapping[str, Tensor]  # of the model, by the names that the rules have
    unused: Mapping[str, str] = {}  # names of tensors that the model has no use for, and why
    assumptions: tuple[str, ...] = ()  # what the file does not tell, as the custom of its family has it


class ModelOutputs(NamedTuple):
    """What another library's code makes of images."""

    tokens: Tensor  # (B, L, D), after the last norm, in the order in which ours stand
    logits: Tensor | None  # (B, K), of a model with a head


class Format:
    """A library's way of keeping a kind of model, known by names and shapes, read and written by the same rules."""

    library: ClassVar[str]  # as --to has it: timm, huggingface
    package: ClassVar[str]  # as pip has it
    title: ClassVar[str]  # for messages: `timm's Vision Transformer`
    supported: ClassVar[Supported]
    name: ClassVar[str]  # of this kind of file among all, as --format has it: timm, dinov2

    def matches(self, ckpt: Checkpoint) -> bool:
        """Whether the names, shapes and notes are of this kind."""
        raise NotImplementedError

    def detect(self, ckpt: Checkpoint, settings: "FileSettings") -> DetectedModel:
        """What the file is; WeightsError where it does not tell and no hint does."""
        raise NotImplementedError

    def rules(self, model: Vit) -> list[Rule]:
        """Which tensors are which, for a model that `unsupported` finds nothing in."""
        raise NotImplementedError

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        """The parts of a model that this format cannot hold, each as a sentence that begins with its field."""
        if not isinstance(bundle.model, Vit):
            yield f"kind: {self.title} is a Vision Transformer, this model a {bundle.model.kind}"
            return
        yield from unsupported_parts(bundle.model, self.supported, self.title)
        yield from self.other_faults(bundle.model, bundle)

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        """What `supported` cannot express: pools and heads, mostly."""
        raise NotImplementedError

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        """The settings that reading needs, since the files do not tell."""
        return ()

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        """The files of a folder that the library reads, from tensors by its own names."""
        return {"model.safetensors": safetensors_chunks(tensors, {"format": "pt"})}

    def import_library(self, model: Vit) -> Any:
        """The library's own code for such a model; raises anything where it is not installed, or broken."""
        raise ImportError(f"{self.library} has no code to compare with")

    def load_reference(self, code: Any, folder: Path, bundle: Bundle) -> Callable[[Tensor], ModelOutputs]:
        """That code on a folder that was written for it."""
        raise NotImplementedError


class FileSettings(NamedTuple):
    """Settings such as `mixer.heads=3`, for what a file does not tell."""

    items: tuple[str, ...] = ()

    def get(self, field: str) -> str:
        """The value of a setting, or nothing."""
        found = [value for name, _, value in (each.partition("=") for each in self.items) if name == field]
        return found[-1] if found else ""

    def infer_heads(self, width: int, ckpt: Checkpoint) -> int:
        """As many as are told, or as the published models of this width have."""
        if told := self.get("mixer.heads"):
            return parse_positive_int(told, "mixer.heads")
        if width not in HEADS:
            message = f"does not tell the number of heads, and no published model has a width of {width}"
            hint = setting_hint(ckpt, "mixer.heads=N")
            raise WeightsError(message, code="weights.missing_setting", where=ckpt.path, hint=hint)
        return HEADS[width]

    def infer_image_size(self, rows: int, prefixes: Sequence[int], patch: Size, ckpt: Checkpoint) -> tuple[Size, int]:
        """The image size that a table of so many positions is for, and how many of them are no patches'."""
        if told := self.get("image_size"):
            image = Size.parse(told)
            cells = (image.height // patch.height) * (image.width // patch.width)
            found = [(image, prefix) for prefix in prefixes if rows == prefix + cells]
        else:
            sides = [(round((rows - prefix) ** 0.5), prefix) for prefix in prefixes if rows > prefix]
            found = [
                (Size(side * patch.height, side * patch.width), prefix)
                for side, prefix in sides
                if side * side == rows - prefix
            ]
        if len(found) != 1:
            message = f"{rows} positions are not those of one square of patches"
            code = "weights.bad_setting" if told else "weights.missing_setting"
            raise WeightsError(message, code=code, where=ckpt.path, hint=setting_hint(ckpt, "image_size=HEIGHTxWIDTH"))
        return found[0]


def setting_hint(ckpt: Checkpoint, setting: str) -> str:
    """What to do about a file that leaves something open."""
    return f"tell it: {convert_command(ckpt, f'--set {setting}')}"


def convert_command(ckpt: Checkpoint, options: str) -> str:
    """The command by which a file is told what it leaves open."""
    allowed = " --allow-pickle" if ckpt.path.suffix in SUFFIXES else ""
    return f"vitral convert {shlex.quote(str(ckpt.path))} NEW-FOLDER {options}{allowed}, and use NEW-FOLDER"


def parse_positive_int(text: str, where: str) -> int:
    """A number from 1 on."""
    if not text.isdecimal() or not int(text):
        message, code = f"expected a whole number from 1 on, got {text!r}", "config.out_of_range"
        raise ConfigError(message, code=code, where=where)
    return int(text)


def count_layers(tensors: Iterable[str], before: str) -> int:
    """How many layers there are names of, `blocks.0.` and so on."""
    numbers = {name.removeprefix(before).split(".")[0] for name in tensors if name.startswith(before)}
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def tensor_shape(ckpt: Checkpoint, name: str, dims: int) -> tuple[int, ...]:
    """The shape of a tensor that must be there, with so many dimensions."""
    if name not in ckpt.tensors:
        message, hint = f"{name} is missing", "give the whole file"
        raise WeightsError(message, code="weights.missing_tensor", where=ckpt.path, hint=hint)
    found = tuple(ckpt.tensors[name].shape)
    if len(found) != dims or not all(found):
        message = f"{name} has shape {found}, expected {dims} dimensions"
        raise WeightsError(message, code="weights.shape_mismatch", where=ckpt.path)
    return found


def numbered_classes(classes: int) -> tuple[str, ...]:
    """Names for classes that have none."""
    return tuple(map(str, range(classes)))


def unnamed_classes(classes: int) -> list[str]:
    """The assumption that goes with `numbered_classes`."""
    return [f"its {classes:,} classes have no names: numbered"] if classes else []


def json_file(data: Mapping[str, Any]) -> Iterable[memoryview]:
    """A file of JSON."""
    return [memoryview(json.dumps(data, indent=2).encode())]
