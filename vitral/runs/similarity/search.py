"""`search`: the images of a collection that are most similar to given ones."""

import csv
import logging
import os
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from vitral.core.config import Config
from vitral.core.errors import ConfigError
from vitral.evaluation.feature_space.neighbors import (
    ExactSearch,
    IndexSearch,
    has_use_for_index,
    measure_recall,
)
from vitral.html.page import plural, printable
from vitral.html.text import align_columns, percent
from vitral.inference.inputs import FileSource, ImageRef
from vitral.runs.similarity.collection import (
    Collection,
    CollectionOptions,
    Inputs,
    ModelSource,
    Reading,
    collect,
    describe_source,
    list_inputs,
    open_predictor,
)
from vitral.runs.similarity.page import Answer, write_search_page

log = logging.getLogger("vitral")
RECALL_QUERIES = 200  # images that the answers of an index are compared with the exact ones for


class Neighbor(Config):
    """An image of the collection, and its cosine similarity to the query."""

    path: str
    score: float


class QueryResult(Config):
    """The most similar images of one query, the most similar first."""

    path: str
    neighbors: tuple[Neighbor, ...]


class SearchResult(Config):
    """The answers to all queries."""

    format: int = 1
    model: str
    images: int  # that were searched
    queries: tuple[QueryResult, ...]
    recall: float | None = None  # share of the exact neighbors that the index finds; None for an exact search
    skipped: tuple[str, ...] = ()  # images that cannot be read

    def __iter__(self) -> Iterator[QueryResult]:  # type: ignore[override]  # of a pydantic model: pairs of fields
        return iter(self.queries)

    def __str__(self) -> str:
        head = ("query", "rank", "score", "image")
        rows = [
            (printable(query.path) if not rank else "", str(rank + 1), f"{each.score:.4f}", printable(each.path))
            for query in self.queries
            for rank, each in enumerate(query.neighbors)
        ]
        return "\n".join(align_columns([head, *rows], right=(1, 2)))

    def to_csv(self) -> str:
        """`query,rank,score,path` for each neighbor."""
        text = StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("query", "rank", "score", "path"))
        for query in self.queries:
            for rank, each in enumerate(query.neighbors, start=1):
                writer.writerow((query.path, rank, f"{each.score:.6f}", each.path))
        return text.getvalue()


def search(
    model: ModelSource,
    queries: Inputs,
    images: Inputs,
    *,
    top: int = 10,
    index: bool = False,
    html: str | Path = "",
    **options: Unpack[CollectionOptions],
) -> SearchResult:
    """Find the images most similar to some given ones: `vitral.search("runs/pile", "cat.jpg", "pile/", top=5)`.

    Similarity is the cosine of the features before the head. Every image is compared, unless an `index` of faiss is
    asked for, which is faster with many queries and may miss some. A query that is among the images does not find
    itself. `html` is a page to write. Unreadable images are an error, or skipped with `skip_bad`.
    """
    if top < 1:
        raise ConfigError(f"expected at least 1, got {top}", code="config.out_of_range", where="top")
    reading = Reading(**options)
    progress = reading.progress
    asked, listed = list_inputs(queries), list_inputs(images)
    with_index = index and has_use_for_index(len(listed))
    if index and not with_index:
        log.info(f"{plural(len(listed), 'image')}: too few for an index, so the search is exact")
    predictor = open_predictor(model, reading.trust)
    collection = collect(predictor, listed, reading)
    found = collect(predictor, asked, reading._replace(cache=False))
    more = top + 1  # a query may find itself
    exact = ExactSearch(collection.features)
    recall = None
    if with_index:
        with progress("building the index", 1) as advance:
            built = IndexSearch(collection.features)
            advance(1)
        neighbors = built.find(found.features, more)
        sampled = found.features[:RECALL_QUERIES]
        recall = measure_recall(neighbors.first(RECALL_QUERIES), exact.find(sampled, more))
        asked_of = plural(len(sampled), "query", "queries")
        log.info(f"the index finds {percent(recall)} of the exact neighbors of {asked_of}")
    else:
        with progress("comparing", len(found.features)) as advance:
            neighbors = exact.find(found.features, more, advance)
    pairs = zip(found.images, neighbors.indices, neighbors.scores, strict=True)
    answers = [_answer(query, collection, indices, scores, top) for query, indices, scores in pairs]
    result = SearchResult(
        model=describe_source(model),
        images=len(collection.images),
        queries=tuple(_query_result(answer) for answer in answers),
        recall=recall,
        skipped=(*collection.unreadable, *found.unreadable),
    )
    if str(html):
        write_search_page(Path(html).expanduser(), result.model, result.images, answers)
    return result


def _answer(
    query: ImageRef, collection: Collection, indices: NDArray[np.int64], scores: NDArray[np.float64], top: int
) -> Answer:
    """The neighbors of a query that are not its own file; an index may find fewer than were asked for."""
    own = _file(query)
    found = [
        (collection.images[index], score)
        for index, score in zip(indices.tolist(), scores.tolist(), strict=True)
        if score > -np.inf
    ]
    return Answer(query, tuple(each for each in found if _file(each[0]) != own)[:top])


def _query_result(answer: Answer) -> QueryResult:
    neighbors = (Neighbor(path=image.name, score=score) for image, score in answer.neighbors)
    return QueryResult(path=answer.query.name, neighbors=tuple(neighbors))


def _file(image: ImageRef) -> str:
    """What tells whether two images are the same file."""
    return os.path.realpath(image.source.path) if isinstance(image.source, FileSource) else image.name
