"""Export a model, with real images to verify and calibrate it."""

from pathlib import Path
from typing import Literal, NamedTuple

from vitral.core.config import Size, union_members
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, DataError, suggest_choice
from vitral.data.datasets.named import open_sample
from vitral.data.datasets.source import open_data, open_images
from vitral.data.samples import Item, Samples, Split
from vitral.evaluation.subject import match_labels
from vitral.exporters.export import ExportRequest, ExportSource
from vitral.exporters.export import export as export_model
from vitral.exporters.targets import BatchSize, InputSize, Target
from vitral.exporters.verify import ExportImages, sample_evenly
from vitral.inference.engines.engine import Precision
from vitral.inference.exported import Export
from vitral.runs.evaluate import run_recipe, split_config
from vitral.runs.request import open_samples
from vitral.weights.bundle import Bundle
from vitral.weights.load import hash_weights, open_model

EXPORTS = Path("exports")
IMAGES, CALIBRATION_IMAGES = 500, 128
PREFERRED: dict[Split, str] = {"val": "validation", "test": "test", "train": "training"}
TARGETS: dict[str, type[Target]] = {target.model_fields["kind"].default: target for target in union_members(Target)}


class ExportResult(NamedTuple):
    """The folder of an export, the content of its `export.json`, and messages for the user."""

    folder: Path
    metadata: Export
    messages: tuple[str, ...]

    def lines(self) -> list[str]:
        """What `vitral export` prints."""
        runner, quantization = self.metadata.runner, self.metadata.quantization
        measured = quantization.lines() if quantization else ()
        return [*self.messages, *measured, *self.metadata.certificate.lines(), runner.line() if runner else ""]

    def __repr__(self) -> str:
        return "\n".join([f"ExportResult({str(self.folder)!r})", *filter(None, self.lines())])


def export(  # noqa: PLR0913, one argument a request
    model: str | Path,
    to: str = "onnx",
    *,
    int8: bool = False,
    batch_size: int | str = "dynamic",
    image_size: str = "",
    data: str = "",
    root: str = "",
    out: str = "",
    images: int = IMAGES,
    trust: bool = False,
) -> ExportResult:
    """Export a model to onnx, openvino or torch: `vitral.export("runs/photos", "onnx", int8=True)`.

    `image_size` is the size of the images that the exported model takes and resizes, or `dynamic` for any; by default
    it takes preprocessed pixels. The export is verified on up to `images` images of `data`, by default the validation
    images of the run, else the bundled images. `trust` allows a model with classes of your own to import them.
    """
    if to not in TARGETS:
        message = f"unknown format {to!r}"
        raise ConfigError(message, code="config.unknown_name", where="--to", hint=suggest_choice(to, TARGETS))
    precision: Precision = "int8" if int8 else "float32"
    request = ExportRequest(TARGETS[to](), precision, parse_batch_size(batch_size), parse_image_size(image_size))
    folder = Path(out).expanduser() if out else EXPORTS / f"{export_name(model)}-{to}{'-int8' if int8 else ''}"
    with trusted(trust):
        opened = open_model(model)
        bundle = opened.loaded.bundle
        samples, message = open_verification_data(model, bundle, data, root)
    selected = select_images(samples, bundle, images)
    metadata = export_model(ExportSource(opened.loaded, hash_weights(opened.file)), selected, request, folder)
    return ExportResult(folder, metadata, tuple(filter(None, (*opened.messages, message))))


def parse_batch_size(given: int | str) -> BatchSize:
    """A batch size, or dynamic."""
    text = str(given)
    if text == "dynamic":
        return "dynamic"
    if text.isdecimal() and int(text):
        return int(text)
    message = f"expected a positive integer or dynamic, got {given!r}"
    raise ConfigError(message, code="config.wrong_type", where="--batch-size")


def parse_image_size(text: str) -> InputSize | Literal["own"]:
    """A size, dynamic, or the model's own."""
    if text == "dynamic":
        return "dynamic"
    try:
        return Size.parse(text) if text else "own"
    except ConfigError as error:
        raise ConfigError(f"{error.message}, or dynamic", code=error.code, where="--image-size") from None


def export_name(model: str | Path) -> str:
    """The name of the run or bundle, or of the file without its suffix."""
    path = Path(model).expanduser().absolute()
    if path.name in ("best", "last"):
        return path.parent.name
    return path.stem if path.is_file() else path.name  # a folder name has no suffix


def open_verification_data(model: str | Path, bundle: Bundle, data: str, root: str) -> tuple[Samples, str]:
    """The images to verify with (those of `data`, of the run, or the bundled ones), and why if they are bundled."""
    if data:
        open_ = open_data if bundle.task == "classify" else open_images  # a model without classes needs no labels
        return open_(data, split_config(model), root), ""
    reason = "the model is not a run, and --data is not given"
    if recipe := run_recipe(model):
        try:
            return open_samples(recipe), ""
        except DataError as error:
            reason = f"those of the run cannot be read ({error.message})"
    return open_sample(), f"verifying with the bundled images: {reason}"


def select_images(samples: Samples, bundle: Bundle, images: int) -> ExportImages:
    """Images to verify with (validation, else test, else training), and others to calibrate with."""
    if images < 1:
        raise ConfigError(f"expected at least 1, got {images}", code="config.out_of_range", where="--images")
    split = next(each for each in PREFERRED if samples.of(each))
    verification = sample_evenly(samples.of(split), images)
    used = set(verification)
    others = [item for item in samples.of("train") or samples.of(split) if item not in used]
    description = f"{PREFERRED[split]} images of {samples.where}"
    labels = verification_labels(samples, bundle, verification)
    return ExportImages(description, samples, verification, labels, sample_evenly(others, CALIBRATION_IMAGES))


def verification_labels(samples: Samples, bundle: Bundle, items: tuple[Item, ...]) -> tuple[int, ...]:
    """The model's labels of the images; empty where the data has other classes."""
    try:
        labels = match_labels(samples, bundle).tolist()
    except DataError:
        return ()
    return tuple(labels[item.label] for item in items)
