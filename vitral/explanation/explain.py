"""The composition: a model and an image become all that is seen of them.

N = R x S patches, D width, L layers, H heads, K classes.

A file becomes what the model sees of it and what people see of it.  H rows, W columns, C channels.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vitral.core.config import Size
from vitral.core.errors import DataError
from vitral.data.datasets.files import read_bytes
from vitral.data.datasets.source import no_such_path
from vitral.data.decoding.decode import opened
from vitral.data.decoding.header import Decoding
from vitral.data.decoding.pixels import Pixels
from vitral.data.thumbnails import decoding_of, viewable
from vitral.data.transforms.crop import CropPlan
from vitral.data.transforms.preprocessing import Preprocessing, sights
from vitral.data.transforms.resize import resize
from vitral.explanation.analysis import MAP_TITLES, Look, Target, cells_of, heat_map, look_at
from vitral.explanation.class_probability import find_class, parse_layers, eval_mode
from vitral.explanation.explanation import Array, Explanation, Faithfulness, MapKind, ModelView, Photo
from vitral.explanation.faithfulness import count_perturbations, measure_faithfulness
from vitral.explanation.filters import Filters, embedding_filters
from vitral.explanation.occlusion import count_occlusions, occlusion
from vitral.explanation.similarity import PositionSimilarity, pca_colors, cosine_similarity, position_similarity
from vitral.explanation.trace import has_attention
from vitral.explanation.walkthrough.steps import walkthrough_steps
from vitral.models.resnet import Resnet
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded, load

MAX_SIDE = 1024  # pixels of a side, to look at


class Sighted(NamedTuple):
    """A picture as people see it, and as numbers for the model: the very numbers that it predicts from."""

    photo: Photo
    image: Tensor  # (1, C, H, W), scaled


def read_photo(path: Path, needs: Preprocessing) -> Sighted:
    """The picture in a file, and what the model is given of it. DataError says what is wrong with a file."""
    data, name = read_bytes(require_file(path)), str(path)
    picture = opened(data, name, needs.decoding)
    glimpse = needs.crop.glimpse(picture.size, needs.image_size)
    seen = sights(picture, (glimpse,))[0]  # (H, W, C)
    pixels = torch.from_numpy(np.ascontiguousarray(seen))
    image = needs.normalize.apply(pixels.permute(2, 0, 1)[None])  # (1, C, H, W)
    own = needs.decoding.model_copy(update={"channels": decoding_of(data, name).channels})
    return Sighted(Photo(path.name, read_whole_image(data, name, own), seen, *crop_fractions(glimpse, picture.size)), image)


def require_file(path: Path) -> Path:
    """The path of a file that is there."""
    if path.is_dir():
        message = "expected an image, found a folder"
        raise DataError(message, code="data.not_a_file", where=str(path), hint="name a file in it")
    if not path.exists():
        raise no_such_path(path)
    return path


def read_whole_image(data: bytes, name: str, decoding: Decoding) -> Pixels:
    """All of the picture in its own colors, (h, w, 3), no larger than is good to look at."""
    picture = opened(data, name, decoding)
    scale = min(1.0, MAX_SIDE / max(picture.size))
    size = Size(*(max(1, round(side * scale)) for side in picture.size))
    return np.asarray(viewable(resize(picture.pixels(size), size, "bilinear")))


def crop_fractions(glimpse: CropPlan, whole: Size) -> tuple[float, float, float, float]:
    """Top, left, height and width of what a glimpse keeps, as shares of the whole picture."""
    part, resized, window = glimpse.part, glimpse.resized, glimpse.window
    down, right = part.height / resized.height, part.width / resized.width  # pixels of the picture a resized one covers
    return (
        (part.top + window.top * down) / whole.height,
        (part.left + window.left * right) / whole.width,
        window.height * down / whole.height,
        window.width * right / whole.width,
    )


# A bar for so many of something; what it gives is called with how many more are done.
Progress = Callable[[str, int], AbstractContextManager[Callable[[int], None]]]


@contextmanager
def no_progress(message: str, total: int) -> Iterator[Callable[[int], None]]:
    """Progress for nobody."""
    yield lambda count: None


def explain(
    model: str | Path | Loaded,
    image: str | Path,
    *,
    class_: str = "",
    layers: str | Sequence[int] = (),
    quick: bool = False,
    progress: Progress = no_progress,
) -> Explanation:
    """All that is seen of one image: `vitral.explain("runs/photos", "cat.jpg")`, which shows itself in a notebook.

    The model is what `vitral.load` takes, or gives. Maps and curves are about the class of that name, or about the
    model's answer. Layers are numbers from 1, or text such as `1-4,12`; by themselves all are kept. Quick leaves out
    what asks the model hundreds of times: occlusion, and the test of the maps.
    """
    return Explainer.of(model, class_, layers, quick).explain(Path(image).expanduser(), progress)


def share_distances(explanations: Sequence[Explanation]) -> tuple[Explanation, ...]:
    """Explanations of images of one model, with the attention distance as the mean over all of them."""
    if len(explanations) < 2:
        return tuple(explanations)
    distances = np.stack([each.model.distances for each in explanations])  # (images, L, H)
    mean = distances.mean(axis=0, dtype=np.float64).astype(np.float32)  # (L, H)
    shared = explanations[0].model._replace(distances=mean, images=len(explanations))
    return tuple(each._replace(model=shared) for each in explanations)


@dataclass(frozen=True)
class Explainer:
    """A model, and what is to be told of every image that it is shown."""

    loaded: Loaded
    title: str
    target: Target
    layers: tuple[int, ...]  # that are kept
    quick: bool

    @classmethod
    def of(cls, model: str | Path | Loaded, class_: str, layers: str | Sequence[int], quick: bool) -> "Explainer":
        """The model made ready. A class or a layer that it does not have is refused here, before any image is read."""
        loaded = model if isinstance(model, Loaded) else load(model)
        config, names = loaded.bundle.model, class_names(loaded.bundle)
        depth = 0 if isinstance(config, Resnet) else config.depth
        target: Target = find_class(class_, names) if class_ else "answer"
        return cls(loaded, model_name(model), target, parse_layers(layers, depth), quick)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The classes that it tells apart."""
        return class_names(self.loaded.bundle)

    @cached_property
    def filters(self) -> Filters:
        return embedding_filters(self.loaded.model)

    @cached_property
    def positions(self) -> PositionSimilarity:
        needs = self.loaded.bundle.preprocessing
        return position_similarity(self.loaded.model, self.loaded.bundle.model.layout(needs.image_size))

    def explain(self, path: Path, progress: Progress = no_progress) -> Explanation:
        """All that is seen of the image in a file."""
        model, needs = self.loaded.model, self.loaded.bundle.preprocessing
        photo, image = read_photo(path, needs)
        image = image.to(next(model.parameters()).device)  # (1, C, H, W)
        with eval_mode(model), progress(photo.name, self.questions()) as advance:
            look = look_at(model, image, self.target, self.names)
            advance(1)
            label = int(look.probabilities.argmax()) if self.names and self.target == "answer" else self.target
            maps, faithfulness = self.asked(look, image, label, advance)
            steps = walkthrough_steps(model, image, photo, self.names)
        cells = cells_of(look.patches, look.layout.grid, look.shown)
        model_view = ModelView(self.filters.components, self.filters.shares, self.positions.values, look.distances, 1)
        return Explanation(
            title=self.title,
            config=self.loaded.bundle.model.model_copy(update={"image_size": needs.image_size}),
            photo=photo,
            classes=self.names,
            probabilities=look.probabilities,
            target="" if label == "answer" else self.names[label],
            layout=look.layout,
            shown=look.shown,
            layers=tuple(each for each in look.layers if each.layer in self.layers),
            maps=tuple(heat_map(kind, values) for kind, values in maps.items()),
            colors=pca_colors(look.patches, look.layout.grid),
            similarity=cosine_similarity(cells),
            faithfulness=faithfulness,
            stages=steps,
            model=model_view,
            lacks=tuple(self.lacks()),
        )

    def asked(
        self, look: Look, image: Tensor, label: Target, advance: Callable[[int], None]
    ) -> tuple[dict[MapKind, Array], Faithfulness]:
        """The maps, and unless it is quick, what is found by asking about changed copies of the image (1, C, H, W)."""
        if self.quick or label == "answer":
            return look.maps, Faithfulness()
        model = self.loaded.model
        maps = {**look.maps, "occlusion": occlusion(model, image, label, advance)}
        return maps, measure_faithfulness(model, image, label, maps, advance=advance)

    def questions(self) -> int:
        """How many images the model is asked about for one: the image itself, then those that are changed."""
        if self.quick or not self.names:
            return 1
        grid = self.loaded.bundle.model.layout(self.loaded.bundle.preprocessing.image_size).grid
        maps = len(MAP_TITLES) if has_attention(self.loaded.model) else 1  # occlusion is to be had of any model
        return 1 + count_occlusions(grid) + count_perturbations(maps, grid)

    def lacks(self) -> Iterator[str]:
        """What cannot be shown, and why, a sentence each."""
        config = self.loaded.bundle.model
        if isinstance(config, Resnet):
            yield "A ResNet has no tokens and no attention: there are no attention maps, no rollout and no relevance."
        elif not has_attention(self.loaded.model):
            message = "there are no attention maps, no rollout, no relevance and no attention distance"
            yield f"Its layers do not attend (mixer={config.mixer.kind}): {message}."
        if not self.names:
            yield (
                "It names no classes: there is no relevance, no occlusion and no test of the maps, "
                "and nothing can be read after each layer."
            )
        elif self.quick:
            yield "Occlusion and the test of the maps were left out, as was asked for."
        if not len(self.filters.components):
            yield "Its filters are all the same: they have no principal components."
        if self.positions.lacks:
            yield self.positions.lacks


def class_names(bundle: Bundle) -> tuple[str, ...]:
    """The classes that a model was trained to tell apart; a head that was not trained names none."""
    return bundle.classes if bundle.task == "classify" else ()


def model_name(model: str | Path | Loaded) -> str:
    """What a model is called: its run, its file, or its name in the hub."""
    if isinstance(model, Loaded):
        return "the model"
    path = Path(model).expanduser()
    named = path.resolve() if path.exists() else path
    return named.parent.name if named.name in {"best", "last"} and named.parent.name else named.name
