"""What `export.json` says of an export: all that whoever runs it has to know, and what it was held to."""

import hashlib
import platform
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

from vitral import __version__
from vitral.config import Config
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.deploy.certificate import Certificate
from vitral.deploy.engine import Answer, Precision

FILE = "export.json"
FORMAT: Literal[1] = 1
Kind = Literal["onnx", "openvino", "torch"]
MODELS: dict[Kind, str] = {"onnx": "model.onnx", "openvino": "model.xml", "torch": "model.pt2"}  # by their files
Method = Literal["dynamic", "static"]  # of quantisation
PACKAGES = ("torch", "numpy", "pillow", "onnx", "onnxruntime", "openvino")
IN_GRAPH = "in the graph, to the pixels that Vitral sees"
TO_SIZE = (
    "in the graph for pictures of its size, to the pixels that Vitral sees; "
    "the runner first brings others to that size, with Pillow and so that the model sees the same part of them"
)
NAMED = 6  # parts that a line names; export.json has them all
BY_RUNNER = "left to the runner, with Pillow, whose pixels are Vitral's to a level or a few"


class File(Config):
    """A file of the export."""

    name: str
    bytes: int
    sha256: str


class Port(Config):
    """What goes in or comes out."""

    name: str
    type: Literal["uint8", "float32"]
    shape: tuple[int | str, ...]  # a word where any number will do


def some(parts: Sequence[str]) -> str:
    """The first of many names, and how many more there are."""
    more = f" and {len(parts) - NAMED} more" if len(parts) > NAMED else ""
    return ", ".join(parts[:NAMED]) + more


class Trial(Config):
    """One way to quantise, and what came of it."""

    method: Method
    floats: tuple[str, ...]  # parts left in float, beside the patch embedding and the head
    holds: bool
    difference: float
    agreement: float | None
    lost: float | None  # of accuracy
    rate: float | None  # images a second where it holds

    def line(self) -> str:
        """The trial in words."""
        lost = "" if self.lost is None else f", accuracy {100 * (0 - self.lost):+.2f} points"
        kept = f" with {some(self.floats)} in float" if self.floats else ""
        held = "holds" if self.holds else "does not hold"
        return f"int8, {self.method}{kept}: {self.agreement or 0:.2%} of the same top-1{lost}: it {held}"


class Quantisation(Config):
    """How an export was quantised."""

    method: Method
    layers: int  # quantised
    floats: tuple[str, ...]  # parts left in float, beside the patch embedding and the head
    calibrated: int  # images
    float_rate: float  # images a second of the same model in float32
    trials: tuple[Trial, ...]

    def lines(self) -> list[str]:
        """The choice in words."""
        rates = [f"{each.method} {each.rate:.1f}" for each in self.trials if each.rate is not None]
        rates.append(f"float32 {self.float_rate:.1f}")
        kept = some(("patch embedding", "head", *self.floats))
        return [f"int8, {self.method}: {', '.join(rates)} images a second; in float stay {kept}"]


class RunnerCheck(Config):
    """The runner's answers to some files, beside those of the same export to what Vitral sees of them."""

    files: int
    agreement: float  # share of the same top-1; of features, of the same direction
    difference: float  # the largest, of the chance of the answer, or of a feature

    def line(self) -> str:
        """The check in words."""
        other = round(self.files * (1 - self.agreement))
        answers = "alike" if not other else f"alike but for {other}, of which the export itself is unsure"
        return f"the runner was tried on {self.files} files, and answers {answers}"


class Export(Config):
    """An export as its folder tells it."""

    format: Literal[1] = FORMAT
    vitral: str = __version__
    kind: Kind
    precision: Precision
    opset: int | None  # of ONNX; null for torch
    files: tuple[File, ...]
    input: Port
    output: Port
    task: str
    classes: tuple[str, ...]
    preprocessing: Preprocessing  # its scaling is in the graph
    resizing: str  # where it is done
    weights: str  # the sha256 of the file that the model was read from
    source: str  # where those came from, if they are not of Vitral
    versions: dict[str, str]
    quantisation: Quantisation | None
    certificate: Certificate
    runner: RunnerCheck | None  # null until it was tried

    @property
    def answer(self) -> Answer:
        """What comes out."""
        return "logits" if self.task == "classify" else "features"

    @property
    def width(self) -> int:
        """How many numbers an answer has."""
        width = self.output.shape[-1]
        assert isinstance(width, int)
        return width


def versions() -> dict[str, str]:
    """The packages that had a part in it."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def files_in(folder: Path) -> tuple[File, ...]:
    """The files of a folder, by name."""
    return tuple(
        File(name=path.name, bytes=path.stat().st_size, sha256=_hash(path)) for path in sorted(folder.iterdir())
    )


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
