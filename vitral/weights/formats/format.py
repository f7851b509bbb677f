"""What every format provides, and what formats have in common.

A format is a declaration: `names` gives its tensors for ours, `supported` the settings of the models it can hold.
"""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from vitral.core.activation import Activation
from vitral.core.config import Size
from vitral.core.errors import ConfigError, WeightsError, format_choices
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.crop import EvalCropConfig, Resize
from vitral.data.transforms.preprocessing import CENTERED, Normalize, Preprocessing
from vitral.models.attention import Attention
from vitral.models.head import NoHead
from vitral.models.mlp import SwiGlu
from vitral.models.registry import SIZES
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.counterpart import nearest_model, setting_value
from vitral.weights.formats.rules import (
    STEM,
    TABLE,
    TOKENS,
    Names,
    Rule,
    Weights,
    named_rules,
    patch_kernel,
    position_rules,
)
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest
from vitral.weights.tensors import is_pickle, safetensors_chunks

CONFIG, PROCESSOR = "config.json", "preprocessor_config.json"  # files that may lie beside the tensors
NPZ = ".npz"
HEADS = {scale.width: scale.heads for scale in reversed(SIZES.values())}  # of the published models, by their width
WHOLE = Resize()
ANY_NUMBER = range(1_001)  # of registers
ANOTHER_MODEL = "if it is another model, choose its layout with --format, or convert it with --map"
USE_ANOTHER = "use another checkpoint, or the library that wrote this one"  # for a part without counterpart
# The values of a model's settings that a format can hold; settings that are not listed are free.
PLAIN: dict[str, Sequence[Any]] = {
    "stem.kind": ("patches",),
    "stem.norm": ("none",),
    "stem.bias": (True,),
    "tokens.registers": (0,),
    "tokens.norm": (False,),
    "position.kind": ("learned1d",),
    "position.where": ("stem",),
    "position.precision": ("float32",),
    "block.kind": ("pre",),
    "block.scale.kind": ("none",),
    "mixer.kind": ("attention",),
    "mixer.qk_norm": (False,),
    "mixer.qk_norm_over": ("head",),
    "mixer.scale": ("1/sqrt(d)",),
    "mixer.output_norm": (False,),
    "mixer.project_bias": (True,),
    "mlp.kind": ("mlp",),
    "mlp.bias": (True,),
    "mlp.norm": (False,),
    "norm.kind": ("layer_norm",),
}


class Checkpoint(NamedTuple):
    """The content of a file or folder, and the user's settings for what it does not record."""

    path: Path  # the file that holds the tensors
    tensors: Mapping[str, Tensor]
    config: Mapping[str, Any]  # of a config.json beside it; empty where there is none
    processor: Mapping[str, Any]  # of a preprocessor_config.json beside it
    settings: tuple[str, ...] = ()  # such as `mixer.heads=3`
    messages: tuple[str, ...] = ()  # what was read and what was not, for the user
    arch: str = ""  # the library's name of the architecture, if the user gives it: `vit_base_patch16_224`

    def setting(self, field: str) -> str:
        """The value of a setting, or nothing."""
        found = [value for name, _, value in (each.partition("=") for each in self.settings) if name == field]
        return found[-1] if found else ""

    def error(self, message: str, code: str, hint: str = "") -> WeightsError:
        """An error about this file."""
        return WeightsError(message, code=code, where=self.path, hint=hint)

    def missing_setting(self, message: str, setting: str, code: str = "weights.missing_setting") -> WeightsError:
        """The error for a file that does not record a setting."""
        return self.error(message, code, f"give it: {self.convert_command(f'--set {setting}')}")

    def convert_command(self, options: str) -> str:
        """The command that converts the file with settings that it does not record."""
        allowed = " --allow-pickle" if is_pickle(self.path) else ""
        return f"vitral convert {shlex.quote(str(self.path))} NEW-FOLDER {options}{allowed}, and use NEW-FOLDER"

    def shape(self, name: str, dims: int) -> tuple[int, ...]:
        """The shape of a tensor that must exist, with so many dimensions."""
        if name not in self.tensors:
            raise self.error(f"{name} is missing", "weights.missing_tensor", f"this layout has it; {ANOTHER_MODEL}")
        found = tuple(self.tensors[name].shape)
        if len(found) != dims or not all(found):
            raise self.error(f"{name} has shape {found}, expected {dims} dimensions", "weights.shape_mismatch")
        return found

    def infer_heads(self, width: int, published: Mapping[int, int] = HEADS) -> int:
        """The given number of heads, or that of the published models of this width."""
        if given := self.setting("mixer.heads"):
            return parse_positive_int(given, "mixer.heads")
        if width not in published:
            message = f"does not record the number of heads, and no published model has a width of {width}"
            raise self.missing_setting(message, "mixer.heads=N")
        return published[width]

    def infer_image_size(self, rows: int, prefixes: Sequence[int], patch: Size) -> tuple[Size, int]:
        """The image size for a table of so many positions, and how many of them are not for patches."""
        if given := self.setting("image_size"):
            image = Size.parse(given)
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
            message = f"{rows} positions do not make one square of patches"
            code = "weights.bad_setting" if given else "weights.missing_setting"
            raise self.missing_setting(message, "image_size=HEIGHTxWIDTH", code)
        return found[0]


class DetectedModel(NamedTuple):
    """The model in a checkpoint."""

    title: str  # `timm's ViT`
    model: Vit | Resnet
    preprocessing: Preprocessing
    classes: tuple[str, ...]  # of a model with a head
    tensors: Mapping[str, Tensor]  # of the model, by the names that the rules have
    unused: Mapping[str, str] = {}  # names of tensors that the model does not use, and why
    assumptions: tuple[str, ...] = ()  # what the file does not record
    rules: Callable[[Vit, Weights], list[Rule]] | None = None  # where the format has several layouts of tensors
    arch: str = ""  # the library's name of the architecture, if it was told from the tensors
    activation: Activation = "softmax"  # of the logits


class OracleFiles(NamedTuple):
    """What a library may open: a folder with its config files, and the file of safetensors in it."""

    folder: Path
    file: Path
    original: Path  # the file of the checkpoint itself
    config: Mapping[str, Any]  # of a config.json; empty where there is none
    arch: str  # the library's name of the architecture, given by the user or told from the tensors


class Format:
    """How a library stores a kind of model, recognized by names and shapes, read and written by the same rules."""

    library: ClassVar[str]  # the value of --to: timm, huggingface
    package: ClassVar[str]  # the name for pip
    title: ClassVar[str]  # for messages: `timm's Vision Transformer`
    name: ClassVar[str]  # of this format, the value of --format: timm, dinov2
    names: ClassVar[Names]  # our tensors and modules, and theirs
    gated_names: ClassVar[Names] = {}  # those that differ with a gated MLP
    register_rows: ClassVar[bool] = True  # whether registers have rows in the table where the class token has one
    supported: ClassVar[Mapping[str, Sequence[Any]]] = PLAIN
    takes_arch: ClassVar[bool] = False  # whether `Checkpoint.arch` is read: the library has architectures by name
    writable: ClassVar[bool] = True  # whether files of it are written, not only read
    squares: ClassVar[bool] = False  # whether images and patches must be square
    even_heads: ClassVar[bool] = True  # whether heads split the width evenly and are projected

    def matches(self, ckpt: Checkpoint) -> bool:
        """Whether the names, shapes and config files are of this format."""
        raise NotImplementedError

    def certain(self, ckpt: Checkpoint) -> bool:
        """Whether a file that matches can be of no other format, though its names fit one."""
        return False

    def lookalikes(self, ckpt: Checkpoint) -> Sequence[str]:
        """Models that no format reads and that would have the same tensors as this file."""
        return ()

    def short(self, name: str) -> str:
        """The name of a tensor in a file without the prefixes and older names that this format allows."""
        return name

    def candidates(self, ckpt: Checkpoint) -> Sequence[str]:
        """The architectures that the file may be, by the names that `--arch` takes."""
        return ()

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        """The model in the file; WeightsError where the file does not record a setting and none is given."""
        raise NotImplementedError

    def stem_settings(self, patch: Sequence[int]) -> dict[str, Any]:
        """The settings of a stem whose kernels in the file are so high and wide."""
        return {"stem.patch": list(patch)}

    def tensor_names(self, model: Vit) -> Names:
        """The names of the tensors of such a model."""
        return {**self.names, **self.gated_names} if isinstance(model.mlp, SwiGlu) else self.names

    def special_rules(self, model: Vit) -> list[Rule]:
        """The rules that a table of names does not express."""
        names = self.tensor_names(model)
        table = names.get(TABLE, "")
        assert isinstance(table, str)
        kernel = patch_kernel(f"{STEM}.weight", f"{names[STEM]}.weight", model.stem.patch)
        return [kernel, *position_rules(model, names.get(TOKENS, ()), table, self.register_rows)]

    def rules(self, model: Vit, own: Weights) -> list[Rule]:
        """Which tensors are which, for a model that `unsupported` finds nothing in, and its state dict."""
        return named_rules(own, self.tensor_names(model), self.special_rules(model))

    def nearest(self, model: Vit) -> Vit:
        """The model itself, or with zeros and eps of this format that are no reason to refuse it."""
        return nearest_model(model, self.supported)

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        """The settings of a model that this format cannot hold, each as a sentence that begins with the setting."""
        model = bundle.model
        if not isinstance(model, Vit):
            yield f"kind: {self.title} is a Vision Transformer, this model a {model.kind}"
            return
        wrong: list[str] = []  # parts of another kind, whose settings are not checked
        for field, allowed in self.supported.items():
            part, value = field.removesuffix(".kind"), setting_value(model, field)
            if value is None or value in allowed or field.startswith(tuple(wrong)):
                continue
            if field == "position.cls" and not model.tokens.cls:
                continue
            wrong += [f"{part}."] if part != field else []
            needs = format_choices(str(each).lower() for each in allowed)
            yield f"{part}: {self.title} needs {needs}, this model has {str(value).lower()}"
        image, patch, mixer = model.image_size, model.stem.patch, model.mixer
        if self.squares and (len(set(image)) > 1 or len(set(patch)) > 1):
            yield f"image_size: {self.title} needs squares, this model has {image} in patches of {patch}"
        even = isinstance(mixer, Attention) and mixer.head_width_for(model.width) * mixer.heads == model.width
        if self.even_heads and isinstance(mixer, Attention) and not (even and mixer.project):
            yield f"mixer: {self.title} splits the width evenly among heads, and projects their output"
        yield from self.other_faults(model, bundle)

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        """What `supported` cannot express."""
        yield from ()

    def resamples_as(self, model: Vit) -> bool:
        """Whether the library resamples learned positions as this model does; if others do, they are preferred."""
        return True

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        """The settings that reading needs because the files do not record them."""
        return ()

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        """The files of a folder that the library reads, from tensors by its own names."""
        return {"model.safetensors": safetensors_chunks(tensors, {"format": "pt"})}

    def oracle_tensors(self, tensors: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        """The tensors of a file that the library is given."""
        return tensors

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        """How the library's own code opens such files, in a separate process; NoOracleError says why it cannot."""
        raise NoOracleError(f"the code of {self.title} is not a package that could be installed")

    def detected(
        self,
        ckpt: Checkpoint,
        model: Vit,
        preprocessing: Preprocessing,
        assumptions: Sequence[str] = (),
        labels: tuple[str, ...] = (),
        unused: Mapping[str, str] = {},
    ) -> DetectedModel:
        """The result of `detect`; classes are numbered unless there is a label for each."""
        classes = 0 if isinstance(model.head, NoHead) else model.head.num_classes
        if len(labels) != classes:
            names = f"are not the {len(labels):,} that have names" if labels else "have no names"
            labels = tuple(map(str, range(classes)))
            assumptions = [*assumptions, *[f"its {classes:,} classes {names}: numbered"] * bool(classes)]
        found = DetectedModel(self.title, model, preprocessing, labels, ckpt.tensors, unused, tuple(assumptions))
        if classes != 1:
            return found
        words = "sigmoid of the only logit, whose softmax is always 1"
        return found._replace(activation="sigmoid", assumptions=(*found.assumptions, words))


class InferredSizes(NamedTuple):
    """The sizes of a model that the shapes of its tensors show."""

    width: int
    channels: int
    patch: Size
    depth: int
    hidden: int  # of the MLP


def infer_sizes(ckpt: Checkpoint, names: Names) -> InferredSizes:
    """The sizes from the patch kernel and from the first map of an MLP."""
    width, channels, *sides = ckpt.shape(f"{names[STEM]}.weight", 4)
    expand = names["blocks.*.mlp.expand"]
    first = expand if isinstance(expand, str) else expand[0]
    hidden = ckpt.shape(f"{first.replace('*', '0')}.weight", 2)[0]
    return InferredSizes(width, channels, Size(*sides), count_layers(ckpt.tensors, first.partition("*")[0]), hidden)


def assumed_preprocessing(
    image: Size,
    channels: int,
    crop: EvalCropConfig = WHOLE,
    normalize: Normalize = CENTERED,
) -> Preprocessing:
    """The preprocessing of a file that does not record its own."""
    scaling = normalize if len(normalize.mean) in {1, channels} else CENTERED
    return Preprocessing(
        image_size=image, decoding=Decoding(channels=channels, jpeg_scale="full"), crop=crop, normalize=scaling
    )


def parse_positive_int(text: str, where: str) -> int:
    """A whole number of at least 1."""
    if not text.isdecimal() or not int(text):
        message = f"expected a whole number of at least 1, got {text!r}"
        raise ConfigError(message, code="config.out_of_range", where=where)
    return int(text)


def count_layers(tensors: Iterable[str], before: str) -> int:
    """The number of layers with names such as `blocks.0.`."""
    numbers = {name.removeprefix(before).split(".")[0] for name in tensors if name.startswith(before)}
    return 1 + max((int(number) for number in numbers if number.isdecimal()), default=-1)


def json_file(data: Mapping[str, Any]) -> Iterable[memoryview]:
    """A file of JSON."""
    return [memoryview(json.dumps(data, indent=2).encode())]
