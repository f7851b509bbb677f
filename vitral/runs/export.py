"""An export: a model, and real images to judge it by, become a folder that others run."""

from pathlib import Path
from typing import Literal, NamedTuple

from vitral.core.config import Size, members
from vitral.core.errors import ConfigError, DataError, suggest
from vitral.data.datasets.named import open_sample
from vitral.data.datasets.source import open_data, open_images
from vitral.data.samples import Item, Samples, Split
from vitral.evaluation.subject import match_labels
from vitral.exporters.export import Source, Wish
from vitral.exporters.export import export as written
from vitral.exporters.targets import Batch, Incoming, Target
from vitral.exporters.verify import Album, spread
from vitral.inference.exported import Export
from vitral.runs.evaluate import split_config, run_recipe
from vitral.runs.request import opened
from vitral.weights.bundle import Bundle
from vitral.weights.load import hash_of, opened_model

EXPORTS = Path("exports")
IMAGES, CALIBRATING = 500, 128
PREFERRED: dict[Split, str] = {"val": "for validation", "test": "for testing", "train": "for training"}
KINDS: dict[str, type[Target]] = {target.model_fields["kind"].default: target for target in members(Target)}


class Exported(NamedTuple):
    """Where an export is, and what it says of itself."""

    folder: Path
    notes: Export
    told: tuple[str, ...]  # what a user should know beside that, a sentence each


class Judges(NamedTuple):
    """A set of images to judge by, in words too, and what there is to tell of it."""

    samples: Samples
    told: tuple[str, ...] = ()


def export(  # noqa: PLR0913, one argument a wish
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
) -> Exported:
    """Write a model as files of onnx, openvino or torch: `vitral.export("runs/photos", "onnx", int8=True)`.

    `image_size` is the size of the pictures that come in, or `dynamic` for any: the graph resizes them. Without it they
    come in as the model sees them. The images that judge are those of `data`, or else the run's own for validation, or
    else the bundled ones; `images` is how many.
    """
    target = KINDS[_known(to)]()
    wish = Wish(target, "int8" if int8 else "float32", batch_of(batch_size), incoming_of(image_size))
    folder = Path(out).expanduser() if out else EXPORTS / f"{name_of(model)}-{to}{'-int8' if int8 else ''}"
    found = opened_model(model)
    judges = judges_of(model, found.loaded.bundle, data, root)
    album = album_of(judges.samples, found.loaded.bundle, images)
    notes = written(Source(found.loaded, hash_of(found.file)), album, wish, folder)
    return Exported(folder, notes, (*found.told, *judges.told))


def batch_of(given: int | str) -> Batch:
    """A number of images, or any."""
    text = str(given)
    if text == "dynamic":
        return "dynamic"
    if text.isdecimal() and int(text):
        return int(text)
    message = f"expected a number of images or dynamic, got {given!r}"
    raise ConfigError(message, code="config.wrong_type", where="--batch-size")


def incoming_of(text: str) -> Incoming | Literal["own"]:
    """A size, any size, or the model's own."""
    if text == "dynamic":
        return "dynamic"
    try:
        return Size.parse(text) if text else "own"
    except ConfigError as error:
        raise ConfigError(f"{error.message}, or dynamic", code=error.code, where="--image-size") from None


def name_of(model: str | Path) -> str:
    """What an export is called after: the run, the bundle, or the file without its ending."""
    path = Path(model).expanduser().absolute()
    if path.name in ("best", "last"):
        return path.parent.name
    return path.stem if path.is_file() else path.name  # what follows a dot in the name of a folder is no ending


def judges_of(model: str | Path, bundle: Bundle, data: str, root: str) -> Judges:
    """The images that judge: those named, or the run's own, or the bundled ones."""
    if data:
        open_ = open_data if bundle.task == "classify" else open_images  # without classes labels are nothing to it
        return Judges(open_(data, split_config(model), root))
    recipe = run_recipe(model)
    if recipe is None:
        return Judges(open_sample(), ("this is no run, and no --data is named: the bundled images judge",))
    try:
        return Judges(opened(recipe))
    except DataError as error:
        told = f"the images of the run are not to be had ({error.message}): the bundled ones judge instead"
        return Judges(open_sample(), (told,))


def album_of(samples: Samples, bundle: Bundle, images: int) -> Album:
    """Images to judge by, for validation or else for testing, and others to calibrate with."""
    if images < 1:
        raise ConfigError(f"expected at least 1, got {images}", code="config.out_of_range", where="--images")
    split = next(each for each in PREFERRED if samples.of(each))
    judging = spread(samples.of(split), images)
    taken = set(judging)
    others = [item for item in samples.of("train") or samples.of(split) if item not in taken]
    where = f"images {PREFERRED[split]} of {samples.where}"
    return Album(where, samples, judging, labels_of(samples, bundle, judging), spread(others, CALIBRATING))


def labels_of(samples: Samples, bundle: Bundle, items: tuple[Item, ...]) -> tuple[int, ...]:
    """The labels that the model has for the classes of the images; none where it does not know them."""
    try:
        labels = match_labels(samples, bundle).tolist()
    except DataError:
        return ()
    return tuple(labels[item.label] for item in items)


def _known(to: str) -> str:
    if to not in KINDS:
        message = f"unknown format {to!r}"
        raise ConfigError(message, code="config.unknown_name", where="--to", hint=suggest(to, KINDS))
    return to
