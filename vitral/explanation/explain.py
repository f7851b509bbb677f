"""Explain the prediction of a model on an image file.  H rows or heads, W columns, C channels, L layers."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError, DataError, format_choices
from vitral.data.datasets.files import read_bytes
from vitral.data.datasets.source import no_such_path
from vitral.data.decoding.decode import open_image
from vitral.data.thumbnails import native_decoding, to_rgb_image
from vitral.data.transforms.crop import CropPlan
from vitral.data.transforms.preprocessing import Preprocessing, decode_and_crop
from vitral.data.transforms.resize import resize
from vitral.explanation import perturbation
from vitral.explanation.analysis import Target, analyze
from vitral.explanation.explanation import MAP_TITLES, Array, Explanation, Faithfulness, MapKind, ModelView, Photo
from vitral.explanation.perturbation import Advance, no_progress
from vitral.explanation.similarity import Filters, PositionSimilarity, embedding_filters, position_similarity
from vitral.explanation.trace import fit_to_patches, has_attention
from vitral.explanation.walkthrough.steps import walkthrough_steps
from vitral.models.attention import Causal
from vitral.models.embed import Palette
from vitral.models.hooks import eval_mode
from vitral.models.resnet import Resnet
from vitral.models.vit import Vit
from vitral.weights.load import LoadedModel, load

MAX_SIDE = 1024  # pixels of an image on the page
MAX_SUGGESTIONS = 5  # of class names
CAUSAL_LIMIT = (
    "Attention is causal: a token attends to itself and those before it, in reading order. What comes after it is no "
    "part of its attention, and as early tokens are seen by more others, rollout and relevance favor the top."
)
# Opens a progress bar with a name and a total.
Progress = Callable[[str, int], AbstractContextManager[Advance]]


class EncodedImage(NamedTuple):
    """An image that is not a file of its own: its name, and its encoded bytes."""

    name: str
    data: bytes


def hide_progress(message: str, total: int) -> AbstractContextManager[Advance]:
    """A progress bar that shows nothing."""
    return nullcontext(no_progress)


def explain(
    model: str | Path | LoadedModel,
    image: str | Path,
    *,
    class_: str = "",
    layers: str | Sequence[int] = (),
    quick: bool = False,
    progress: Progress = hide_progress,
    trust: bool = False,
) -> Explanation:
    """Explain the prediction on one image: `vitral.explain("runs/photos", "cat.jpg")`, which displays in a notebook.

    `model` is what `vitral.load` takes or returns. Maps and curves are about the class named `class_`, by default the
    predicted one. `layers` counts from 1: a list, or text such as `1-4,12`; by default all are kept. `quick` leaves out
    occlusion and the faithfulness test, which run the model hundreds of times. `trust` allows a model with classes of
    your own to import them.
    """
    with trusted(trust):
        explainer = Explainer(model, class_, layers, quick)
    return explainer.explain(Path(image).expanduser(), progress)


def share_distances(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Explanations of images of one model, with the attention distance averaged over all of them."""
    if len(explanations) < 2:
        return tuple(explanations)
    distances = np.stack([each.model.distances for each in explanations])  # (images, L, H)
    mean = distances.mean(axis=0, dtype=np.float64).astype(np.float32)  # (L, H)
    shared = explanations[0].model._replace(distances=mean, images=len(explanations))
    return tuple(replace(each, model=shared) for each in explanations)


class Explainer:
    """A loaded model, and what to explain about every image."""

    def __init__(
        self, model: str | Path | LoadedModel, class_: str = "", layers: str | Sequence[int] = (), quick: bool = False
    ) -> None:
        """Load the model. An unknown class or layer is refused here, before any image is read."""
        self.loaded = model if isinstance(model, LoadedModel) else load(model)
        bundle = self.loaded.bundle
        self.name, self.quick = model_name(model), quick
        self.classes = bundle.classes if bundle.task == "classify" else ()  # none for a head that was not trained
        self.target: Target = find_class(class_, self.classes) if class_ else "predicted"
        self.layers = parse_layers(layers, 0 if isinstance(bundle.model, Resnet) else bundle.model.depth)
        self.layout = bundle.model.layout(bundle.preprocessing.image_size)

    @cached_property
    def filters(self) -> Filters:
        return embedding_filters(self.loaded.model)

    @cached_property
    def positions(self) -> PositionSimilarity:
        return position_similarity(self.loaded.model, self.layout)

    def explain(self, image_file: Path | EncodedImage, progress: Progress = hide_progress) -> Explanation:
        """Explain the prediction on one image."""
        model, needs = self.loaded.model, self.loaded.bundle.preprocessing
        photo, image = read_photo(image_file, needs)
        photo, image = fit_to_patches(model, photo, image.to(next(model.parameters()).device))  # (1, C, H, W)
        with eval_mode(model), progress(photo.name, self.count_passes()) as advance:
            analysis = analyze(model, image, self.target, bool(self.classes))
            advance(1)
            maps, faithfulness, target = dict(analysis.maps), Faithfulness(), ""
            if self.classes:
                label = int(analysis.probabilities.argmax()) if self.target == "predicted" else self.target
                target = self.classes[label]
                if not self.quick:
                    maps["occlusion"] = perturbation.occlusion(model, image, label, advance)
                    faithfulness = perturbation.measure_faithfulness(model, image, label, maps, advance=advance)
            steps = walkthrough_steps(model, image, photo, self.classes)
        distances = [layer.distance for layer in analysis.layers]  # each (H,)
        changes = {
            "maps": {kind: from_zero(kind, values) for kind, values in maps.items()},
            "layers": tuple(layer for layer in analysis.layers if layer.layer in self.layers),
        }
        return Explanation(
            **(vars(analysis) | changes),
            model_name=self.name,
            config=self.loaded.bundle.model.model_copy(update={"image_size": needs.image_size}),
            photo=photo,
            classes=self.classes,
            target=target,
            faithfulness=faithfulness,
            steps=steps,
            model=ModelView(
                filters=self.filters.components,
                explained_variance=self.filters.explained_variance,
                positions=self.positions.values,
                distances=np.stack(distances) if distances else np.empty((0, 0), np.float32),  # (L, H)
                images=1,
            ),
            unavailable=tuple(self.unavailable()),
        )

    def count_passes(self) -> int:
        """How many images the model is run on to explain one: the image itself and its changed copies."""
        if self.quick or not self.classes:
            return 1
        grid = self.layout.grid
        maps = len(MAP_TITLES) if has_attention(self.loaded.model) else 1  # occlusion works for any model
        return 1 + perturbation.count_occlusions(grid) + perturbation.count_perturbations(maps, grid)

    def unavailable(self) -> Iterator[str]:
        """What cannot be shown and why, a sentence each."""
        config = self.loaded.bundle.model
        if isinstance(config, Resnet):
            yield "A ResNet has no tokens and no attention: there are no attention maps, no rollout and no relevance."
        elif not has_attention(self.loaded.model):
            missing = "there are no attention maps, no rollout, no relevance and no attention distance"
            yield f"The layers have no attention (mixer={config.mixer.kind}): {missing}."
        if not self.classes:
            missing = "there is no relevance, no occlusion, no faithfulness test and no logit lens"
            yield f"The model has no classes: {missing}."
        elif self.quick:
            yield "Occlusion and the faithfulness test were skipped (quick)."
        if isinstance(config, Vit) and isinstance(config.mixer, Causal):
            yield CAUSAL_LIMIT
        if isinstance(config, Vit) and isinstance(config.stem, Palette):
            yield "The embeddings of colors are looked up: there are no filters."
        elif not len(self.filters.components):
            yield "All filters are equal: they have no principal components."
        if self.positions.reason:
            yield self.positions.reason


def from_zero(kind: MapKind, values: Array) -> Array:
    """A map (R, S) for display: all kinds but occlusion start at 0, or what all patches share hides the rest."""
    return values if kind == "occlusion" else values - values.min()


def model_name(model: str | Path | LoadedModel) -> str:
    """The name of a run, a file, or a model of the hub."""
    if isinstance(model, LoadedModel):
        return "the model"
    path = Path(model).expanduser()
    named = path.resolve() if path.exists() else path
    return named.parent.name if named.name in {"best", "last"} and named.parent.name else named.name


def find_class(name: str, classes: Sequence[str]) -> int:
    """The label of the class of this name; a number that is not a name is used as the label."""
    if not classes:
        raise ConfigError("this model has no classes", code="config.unsupported", where="class", hint="omit it")
    labels = [label for label, each in enumerate(classes) if each == name]
    if len(labels) > 1:
        message, hint = f"{len(labels)} classes are named {name!r}", f"pass the number of one: {format_choices(labels)}"
        raise ConfigError(message, code="config.ambiguous_name", where="class", hint=hint)
    if labels:
        return labels[0]
    if re.fullmatch("[0-9]{1,9}", name) and int(name) < len(classes):
        return int(name)
    message = f"none of the {len(classes):,} classes is named {name!r}"
    raise ConfigError(message, code="config.unknown_name", where="class", hint=suggest_classes(name, classes))


def suggest_classes(name: str, classes: Sequence[str]) -> str:
    """`did you mean 'tabby cat' or 'tiger cat'?`: classes that contain the name, or are spelled like it."""
    by_name = {each.lower(): each for each in classes}
    near = [each for each in by_name if name.lower() in each][:MAX_SUGGESTIONS]
    near = near or get_close_matches(name.lower(), by_name, n=MAX_SUGGESTIONS)
    if near:
        return f"did you mean {format_choices(repr(by_name[each]) for each in near)}?"
    more = f" and {len(classes) - MAX_SUGGESTIONS:,} more" if len(classes) > MAX_SUGGESTIONS else ""
    return f"there are {', '.join(map(repr, classes[:MAX_SUGGESTIONS]))}{more}"


def parse_layers(layers: str | Sequence[int], depth: int) -> tuple[int, ...]:
    """Sorted layer numbers, counting from 1, of `1,6,12`, `1-4,12` or a list; all layers for an empty one."""
    if not layers:
        return tuple(range(1, depth + 1))
    if not depth:
        raise ConfigError("this model has no layers", code="config.unsupported", where="layers", hint="omit it")
    numbers: set[int] = set()
    for part in layers.split(",") if isinstance(layers, str) else map(str, layers):
        ends = re.fullmatch(r"\s*([0-9]+)\s*(?:-\s*([0-9]+)\s*)?", part)
        first, last = (int(ends[1]), int(ends[2] or ends[1])) if ends else (0, 0)
        if not 1 <= first <= last <= depth:
            message = f"expected numbers from 1 to {depth}, the layers of this model, got {part.strip()!r}"
            hint = "pass numbers such as 1,6,12 or 1-4,12, or omit it"
            raise ConfigError(message, code="config.out_of_range", where="layers", hint=hint)
        numbers.update(range(first, last + 1))
    return tuple(sorted(numbers))


def read_photo(image_file: Path | EncodedImage, needs: Preprocessing) -> tuple[Photo, Tensor]:
    """The image in a file, and the tensor (1, C, H, W) that the model predicts from."""
    if isinstance(image_file, Path):
        if image_file.is_dir():
            message, hint = "expected an image, found a folder", "pass a file in that folder"
            raise DataError(message, code="data.not_a_file", where=image_file, hint=hint)
        if not image_file.exists():
            raise no_such_path(image_file)
        image_file = EncodedImage(str(image_file), read_bytes(image_file))
    name, data = image_file
    picture = open_image(data, name, needs.decoding)
    plan = needs.crop.plan(picture.size, needs.image_size)
    crop = decode_and_crop(picture, plan)  # (H, W, C)
    image = needs.normalize.apply(torch.from_numpy(np.ascontiguousarray(crop)).permute(2, 0, 1)[None])  # (1, C, H, W)
    # The whole image in its own colors (h, w, 3), reduced for display.
    own = needs.decoding.model_copy(update={"channels": native_decoding(data, name).channels})
    picture = open_image(data, name, own)
    scale = min(1.0, MAX_SIDE / max(picture.size))
    size = Size(*(max(1, round(side * scale)) for side in picture.size))
    whole = np.asarray(to_rgb_image(resize(picture.pixels(size), size, "bilinear")))
    return Photo(Path(name).name, whole, crop, *crop_fractions(plan, picture.size)), image


def crop_fractions(plan: CropPlan, whole: Size) -> tuple[float, float, float, float]:
    """Top, left, height and width of a crop, as fractions of the whole image."""
    part, resized, window = plan.box, plan.resize_to, plan.window
    down, right = part.height / resized.height, part.width / resized.width  # pixels of the image per resized pixel
    return (
        (part.top + window.top * down) / whole.height,
        (part.left + window.left * right) / whole.width,
        window.height * down / whole.height,
        window.width * right / whole.width,
    )
