"""`curate`: leave near duplicates out of a collection, and keep a subset that covers the rest.

Duplicates are found by the pixels, as `vitral check` finds them: a similarity of features above which two images are
the same would differ from model to model. The subset is chosen by farthest-point selection (k-center greedy): it has no
parameter, draws nothing at random, and bounds how far any image is from a kept one, so rare kinds of images stay.
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.core.errors import ConfigError, DataError
from vitral.data.doctor.duplicates import near_duplicates
from vitral.data.doctor.examine import THUMBNAIL_SIDE, ImageInfo, examine
from vitral.data.samples import Item
from vitral.evaluation.feature_space.selection import Selection, coverage, farthest_point
from vitral.evaluation.subject import Progress, no_progress
from vitral.html.page import plural, printable
from vitral.html.text import align_columns
from vitral.inference.inputs import ImageRef
from vitral.runs.similarity.cluster import check_enough
from vitral.runs.similarity.collection import (
    Collection,
    CollectionOptions,
    Inputs,
    ModelSource,
    Reading,
    collect,
    describe_source,
    file_paths,
    list_inputs,
    open_predictor,
)
from vitral.runs.similarity.manifest import ManifestColumn, output_path, train_command, write_manifest
from vitral.runs.similarity.page import Duplicates, Fact, LeftOut, write_curate_page

log = logging.getLogger("vitral")
ENDING = ".curated.csv"
SHOWN, SHOWN_GROUPS = 60, 24  # images and groups of duplicates on the page
RANDOM_SEED = 0  # of the random subset that the choice is compared with


class DuplicateImages(Config):
    """An image, and its near duplicates, which are not kept."""

    kept: str
    dropped: tuple[str, ...]


class Coverage(Config):
    """How far images are from the nearest kept one: 1 - cosine similarity."""

    mean: float
    largest: float


class CurateResult(Config):
    """What was kept of a collection."""

    format: int = 1
    model: str
    images: int
    duplicates: tuple[DuplicateImages, ...]
    kept: tuple[str, ...]  # in the order of choice: any first part is a choice of its own
    coverage: Coverage
    random_coverage: Coverage  # of a random subset of the same size
    manifest: str
    page: str = ""
    skipped: tuple[str, ...] = ()  # images that cannot be read

    @property
    def dropped(self) -> int:
        """The number of near duplicates that were left out."""
        return sum(len(group.dropped) for group in self.duplicates)

    def __str__(self) -> str:
        rows = [
            ("images", f"{self.images:,}"),
            ("near duplicates left out", f"{self.dropped:,}"),
            ("kept", f"{len(self.kept):,}"),
            ("distance to the nearest kept image", format_coverage(self.coverage)),
            ("the same for a random subset of this size", format_coverage(self.random_coverage)),
            ("manifest", printable(self.manifest)),
        ]
        return "\n".join(align_columns(rows))


def format_coverage(found: Coverage) -> str:
    """`mean 0.021, largest 0.14`."""
    return f"mean {found.mean:.3g}, largest {found.largest:.3g}"


def curate(
    model: ModelSource,
    images: Inputs,
    keep: int,
    *,
    out: str | Path = "",
    html: str | Path = "",
    **options: Unpack[CollectionOptions],
) -> CurateResult:
    """Choose a diverse subset of `keep` images: `vitral.curate("runs/pile", "pile/", keep=500)`.

    Of near duplicates only the first stays. Then each image is chosen that is farthest from all those before it, by the
    cosine of the features. `out` is the manifest to write, by default `pile.curated.csv`, which `vitral.train` takes.
    `html` is a page to write. Unreadable images are an error, or skipped with `skip_bad`.
    """
    if keep < 1:
        raise ConfigError(f"expected at least 1, got {keep}", code="config.out_of_range", where="keep")
    manifest = output_path(out, images, ENDING)
    reading = Reading(**options)
    progress = reading.progress
    listed = list_inputs(images)
    file_paths(listed)  # before the work: a manifest has to name them
    check_enough(len(listed), keep, "keep")
    collection = collect(open_predictor(model, reading.trust), listed, reading)
    groups = find_duplicates(collection.images, progress)
    dropped = {index for group in groups for index in group[1:]}
    left = [index for index in range(len(collection.images)) if index not in dropped]
    rest = Collection(tuple(collection.images[index] for index in left), collection.features[left], ())
    if keep > len(left):
        log.info(f"only {plural(len(left), 'image is', 'images are')} left without near duplicates: all are kept")
    keep = min(keep, len(left))
    with progress("choosing", keep) as advance:
        found = farthest_point(rest.features, keep, advance)
    kept = [rest.images[index] for index in found.chosen.tolist()]
    result = CurateResult(
        model=describe_source(model),
        images=len(collection.images),
        duplicates=tuple(_named(collection, group) for group in groups),
        kept=tuple(image.name for image in kept),
        coverage=_coverage(found.distances),
        random_coverage=_coverage(coverage(rest.features, random_subset(len(left), keep))),
        manifest=str(manifest),
        page=str(html),
        skipped=collection.unreadable,
    )
    rank = [str(number + 1) for number in range(len(kept))]
    write_manifest(manifest, images, kept, [ManifestColumn("rank", rank)])
    log.info(
        f"{plural(len(kept), 'image')} in {manifest}; to train on them without labels: {train_command(manifest, kept)}"
    )
    if str(html):
        shown = [_shown(collection, group) for group in groups[:SHOWN_GROUPS]]
        write_curate_page(Path(html).expanduser(), _facts(result), kept[:SHOWN], shown, _left_out(rest, found))
    return result


@dataclass(frozen=True)
class RefStore:
    """The images of a collection as a store, for `examine`."""

    images: Sequence[ImageRef]

    def read(self, name: str) -> bytes:
        return self.images[int(name)].source.read()

    def address(self, name: str) -> str:
        return self.images[int(name)].name

    def size(self, name: str) -> int:
        return len(self.read(name))


def find_duplicates(images: Sequence[ImageRef], progress: Progress = no_progress) -> list[list[int]]:
    """Groups of images with the same bytes or that look the same, as indices; the first of each is the one to keep."""
    store = RefStore(images)
    thumbnails, digests = np.zeros((len(images), THUMBNAIL_SIDE**2 * 3), np.uint8), []
    with progress("looking for duplicates", len(images)) as advance:
        for index in range(len(images)):
            found = examine(store, Item(str(index), 0, "train"))
            if not isinstance(found, ImageInfo):  # it was readable a moment ago
                raise DataError(found.message, code=found.code, where=images[index].name, hint=found.hint)
            thumbnails[index] = np.frombuffer(found.thumbnail, np.uint8)
            digests.append(found.digest)
            advance(1)
    return merge_groups([*near_duplicates(thumbnails), *_same_bytes(digests)])


def _same_bytes(digests: Sequence[bytes]) -> list[list[int]]:
    """Groups of equal files; flat images are never near duplicates, but copies of one are the same."""
    groups: dict[bytes, list[int]] = {}
    for index, digest in enumerate(digests):
        groups.setdefault(digest, []).append(index)
    return [group for group in groups.values() if len(group) > 1]


def merge_groups(groups: Sequence[Sequence[int]]) -> list[list[int]]:
    """Groups that share an image as one; sorted inside and by their first image."""
    home: dict[int, list[int]] = {}
    for group in groups:
        merged = sorted({member for index in group for member in home.get(index, [index])})
        home |= dict.fromkeys(merged, merged)
    return sorted({id(group): group for group in home.values()}.values())


def random_subset(images: int, count: int) -> NDArray[np.int64]:
    """A random choice, for comparison."""
    rng = np.random.Generator(np.random.Philox(RANDOM_SEED))
    return rng.permutation(images)[:count]


def _coverage(distances: NDArray[np.float64]) -> Coverage:
    return Coverage(mean=float(distances.mean()), largest=float(distances.max()))


def _named(collection: Collection, group: Sequence[int]) -> DuplicateImages:
    first, *others = (collection.images[index].name for index in group)
    return DuplicateImages(kept=first, dropped=tuple(others))


def _shown(collection: Collection, group: Sequence[int]) -> Duplicates:
    first, *others = (collection.images[index] for index in group)
    return Duplicates(first, tuple(others))


def _left_out(rest: Collection, found: Selection) -> list[LeftOut]:
    """The images that are farthest from those that were kept."""
    chosen = set(found.chosen.tolist())
    order = [index for index in np.argsort(-found.distances, kind="stable").tolist() if index not in chosen]
    return [
        LeftOut(rest.images[index], rest.images[int(found.nearest[index])], float(1 - found.distances[index]))
        for index in order[: SHOWN // 5]
    ]


def _facts(result: CurateResult) -> list[Fact]:
    return [
        ("images", f"{result.images:,}"),
        ("near duplicates left out", f"{result.dropped:,}"),
        ("kept", f"{len(result.kept):,}"),
        ("mean distance to the nearest kept image", f"{result.coverage.mean:.3g}"),
        ("largest distance to the nearest kept image", f"{result.coverage.largest:.3g}"),
        ("mean, if as many were drawn at random", f"{result.random_coverage.mean:.3g}"),
        ("largest, if as many were drawn at random", f"{result.random_coverage.largest:.3g}"),
        ("features of", result.model),
        ("manifest", Path(result.manifest).name),
    ]
