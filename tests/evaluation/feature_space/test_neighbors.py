"""Neighbors against brute force and scikit-learn, with and without an index."""

import sys

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.metrics.pairwise import cosine_similarity

from tests.errors import raises
from vitral.evaluation.feature_space import neighbors
from vitral.evaluation.feature_space.neighbors import (
    ExactSearch,
    IndexSearch,
    Neighbors,
    has_use_for_index,
    list_count,
    measure_recall,
)


def features(images: int, seed: int, width: int = 8) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(images, width)).astype(np.float32)


def brute_force(known: NDArray[np.float32], asked: NDArray[np.float32], k: int) -> list[list[int]]:
    """By Python's sort, which is stable: of equally near images the first comes first."""
    rows = cosine_similarity(asked.astype(np.float64), known.astype(np.float64)).round(12)
    return [sorted(range(len(known)), key=lambda index, row=row: -row[index])[:k] for row in rows]  # type: ignore[misc]


@pytest.mark.parametrize("k", [1, 5, 40])
@pytest.mark.parametrize("block", [7, neighbors.BLOCK])
@pytest.mark.parametrize("chunk", [1, neighbors.CHUNK])
def test_the_neighbors_are_those_of_brute_force(
    k: int, block: int, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbors, "BLOCK", block)
    monkeypatch.setattr(neighbors, "CHUNK", chunk)
    known, asked = features(40, 0), features(9, 1)
    found = ExactSearch(known).find(asked, k)
    assert found.indices.tolist() == brute_force(known, asked, k)
    similarities = cosine_similarity(asked.astype(np.float64), known.astype(np.float64))
    assert np.abs(found.scores - np.take_along_axis(similarities, found.indices, axis=1)).max() < 1e-12


def test_of_equally_near_images_the_first_comes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "BLOCK", 3)
    known = np.array([[0, 1], [1, 0], [2, 0], [0, 3], [5, 0], [1, 0], [0, 0]], dtype=np.float32)
    found = ExactSearch(known).find(known[1:2], 3)
    assert found.indices.tolist() == [[1, 2, 4]]
    assert found.scores.tolist() == [[1, 1, 1]]


def test_more_neighbors_than_images_are_all_images_and_no_query_has_none() -> None:
    known = features(4, 0)
    assert ExactSearch(known).find(features(2, 1), 10).indices.shape == (2, 4)
    assert ExactSearch(known).find(known[:0], 2).indices.shape == (0, 2)


def test_the_progress_is_the_number_of_queries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbors, "CHUNK", 40)
    done: list[int] = []
    ExactSearch(features(10, 0)).find(features(9, 1), 2, done.append)
    assert done == [4, 4, 1]


def test_recall_is_the_share_of_exact_neighbors_that_were_found() -> None:
    exact = Neighbors(np.array([[0, 1], [2, 3]]), np.array([[0.9, 0.8], [0.7, 0.6]]))
    found = Neighbors(np.array([[0, 5], [2, 3]]), np.array([[0.9, 0.1], [0.7, 0.6]]))
    assert measure_recall(exact, exact) == 1
    assert measure_recall(found, exact) == 0.75


def test_an_index_has_lists_where_there_are_images_enough() -> None:
    assert [list_count(images) for images in (10, 1_000, 10_000, 1_000_000)] == [1, 25, 256, 4_000]
    assert [has_use_for_index(images) for images in (100, 200)] == [False, True]


def test_an_index_without_faiss_names_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "faiss", None)
    with raises("config.missing_package", "faiss", "vitral[search]"):
        IndexSearch(features(10, 0))


def test_an_index_finds_most_neighbors_with_their_exact_scores_and_the_same_each_time() -> None:
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'vitral[search]'")
    known, asked = features(2_000, 0, width=4), features(50, 1, width=4)
    exact, first, second = ExactSearch(known).find(asked, 5), *(IndexSearch(known).find(asked, 5) for _ in range(2))
    assert measure_recall(first, exact) > 0.8
    assert (first.indices == second.indices).all()
    similarities = cosine_similarity(asked.astype(np.float64), known.astype(np.float64))
    assert np.abs(first.scores - np.take_along_axis(similarities, first.indices, axis=1)).max() < 1e-12
