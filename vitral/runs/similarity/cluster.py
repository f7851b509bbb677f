"""`cluster`: group images by their features, with a manifest and a page."""

import logging
from pathlib import Path
from typing import Unpack

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.evaluation.feature_space.kmeans import STARTS, Clusters, Rows, kmeans
from vitral.html.page import plural, printable
from vitral.html.text import align_columns, percent
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
from vitral.runs.similarity.manifest import ManifestColumn, output_path, write_manifest
from vitral.runs.similarity.page import Fact, ShownCluster, map_chart, write_cluster_page

log = logging.getLogger("vitral")
TYPICAL = 12  # images of a cluster that are listed and shown
EDGE = 6
FEW_MEMBERS = 2 * TYPICAL  # up to which all of them are typical
ENDING = ".clusters.csv"


class Cluster(Config):
    """A cluster of images; numbers count from 1, the largest first."""

    number: int
    images: int
    share: float  # of all images
    similarity: float  # mean cosine similarity of its images to its center
    typical: tuple[str, ...]  # the images nearest to the center, the nearest first


class ClusterResult(Config):
    """The clusters of a collection, and where they were written."""

    format: int = 1
    model: str
    images: int
    seed: int
    clusters: tuple[Cluster, ...]
    inertia: float  # the sum of squared distances to the centers, on the unit sphere
    converged: bool
    manifest: str
    page: str = ""
    skipped: tuple[str, ...] = ()  # images that cannot be read

    def __str__(self) -> str:
        head = ("cluster", "images", "share", "similarity", "most typical")
        rows = [
            (f"{each.number}", f"{each.images:,}", percent(each.share), f"{each.similarity:.3f}", _first(each))
            for each in self.clusters
        ]
        return "\n".join(align_columns([head, *rows], right=(0, 1, 2, 3)))


def _first(cluster: Cluster) -> str:
    return printable(cluster.typical[0]) if cluster.typical else ""


def cluster(
    model: ModelSource,
    images: Inputs,
    clusters: int,
    *,
    seed: int = 0,
    out: str | Path = "",
    html: str | Path = "",
    **options: Unpack[CollectionOptions],
) -> ClusterResult:
    """Group images by k-means of their features: `vitral.cluster("runs/pile", "pile/", clusters=20)`.

    `out` is the manifest to write, by default `pile.clusters.csv`: the path of each image, its cluster and its cosine
    similarity to the center. `html` is a page to write. The seed decides the clusters: the same features give the same
    to the bit. Unreadable images are an error, or skipped with `skip_bad`.
    """
    if clusters < 1:
        raise ConfigError(f"expected at least 1, got {clusters}", code="config.out_of_range", where="clusters")
    manifest = output_path(out, images, ENDING)
    reading = Reading(**options)
    progress = reading.progress
    listed = list_inputs(images)
    file_paths(listed)  # before the work: a manifest has to name them
    check_enough(len(listed), clusters, "clusters")
    collection = collect(open_predictor(model, reading.trust), listed, reading)
    check_enough(len(collection.images), clusters, "clusters")
    with progress("clustering", STARTS) as advance:
        found = kmeans(collection.features, clusters, seed, advance)
    similarity = found.similarities()
    shown = [_shown(found, collection, similarity, number) for number in range(clusters)]
    columns = (
        ManifestColumn("cluster", [str(label + 1) for label in found.labels.tolist()]),
        ManifestColumn("similarity", [f"{each:.6f}" for each in similarity.tolist()]),
    )
    result = ClusterResult(
        model=describe_source(model),
        images=len(collection.images),
        seed=seed,
        clusters=tuple(_cluster(each) for each in shown),
        inertia=found.inertia,
        converged=found.converged,
        manifest=str(manifest),
        page=str(html),
        skipped=collection.unreadable,
    )
    write_manifest(manifest, images, collection.images, columns)
    log.info(f"{plural(clusters, 'cluster')} of {plural(result.images, 'image')} in {manifest}")
    if str(html):
        plane = map_chart(collection.features, collection.names, found.labels)
        write_cluster_page(Path(html).expanduser(), _facts(result), shown, plane)
    return result


def check_enough(images: int, count: int, setting: str) -> None:
    """Raise ConfigError for more clusters, or more images to keep, than there are images."""
    if count > images:
        message = f"{count:,} of {plural(images, 'image')}"
        raise ConfigError(message, code="config.out_of_range", where=setting, hint=f"use at most {images:,}")


def _shown(found: Clusters, collection: Collection, similarity: Rows, number: int) -> ShownCluster:
    members = found.members(number).tolist()
    edge = members[: -EDGE - 1 : -1] if len(members) > FEW_MEMBERS else []
    return ShownCluster(
        number=number + 1,
        images=len(members),
        share=len(members) / len(collection.images),
        similarity=float(similarity[members].mean()) if members else 1.0,
        typical=tuple(collection.images[index] for index in members[:TYPICAL]),
        edge=tuple(collection.images[index] for index in edge),
    )


def _cluster(shown: ShownCluster) -> Cluster:
    return Cluster(
        number=shown.number,
        images=shown.images,
        share=shown.share,
        similarity=shown.similarity,
        typical=tuple(image.name for image in shown.typical),
    )


def _facts(result: ClusterResult) -> list[Fact]:
    sizes = [each.images for each in result.clusters]
    return [
        ("images", f"{result.images:,}"),
        ("clusters", f"{len(sizes):,}"),
        ("images in a cluster", f"{min(sizes):,} to {max(sizes):,}"),
        ("features of", result.model),
        ("seed", str(result.seed)),
        ("manifest", Path(result.manifest).name),
    ]
