"""Searches of real files, against the features of the model."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.metrics.pairwise import cosine_similarity

import vitral
from tests.errors import raises
from tests.evaluation.subjects import striped_model
from tests.inference.album import photos, spoilt
from vitral.weights.load import LoadedModel


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of this test alone."""
    home = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home))
    return home


@pytest.fixture
def pile(tmp_path: Path) -> Path:
    photos(tmp_path / "pile/a", 7)
    photos(tmp_path / "pile/b/deep", 5, side=30)
    return tmp_path / "pile"


def own_features(loaded: LoadedModel, paths: list[Path]) -> np.ndarray:
    images = torch.cat([loaded.bundle.preprocessing.tensor(path.read_bytes(), "") for path in paths])
    with torch.no_grad():
        return loaded.model.forward_pooled(images).double().numpy()


def test_the_neighbors_are_those_of_the_features_of_the_model(pile: Path) -> None:
    model = striped_model()
    files = sorted(pile.rglob("*.jpg"))
    rows = own_features(model, files)
    similarities = cosine_similarity(rows[:2], rows)
    found = vitral.search(model, files[:2], pile, top=4)
    assert found.images == 12
    for number, query in enumerate(found):
        order = [index for index in np.argsort(-similarities[number]) if index != number][:4]
        assert query.path == str(files[number])
        assert [each.path for each in query.neighbors] == [str(files[index]) for index in order]
        assert [each.score for each in query.neighbors] == pytest.approx(similarities[number][order], abs=1e-5)


def test_a_query_does_not_find_its_own_file_but_a_copy_of_it(pile: Path) -> None:
    shutil.copy(pile / "a/3.jpg", pile / "copy.jpg")
    (found,) = vitral.search(striped_model(), pile / "a/3.jpg", pile, top=50)
    assert found.neighbors[0].path == str(pile / "copy.jpg")
    assert found.neighbors[0].score == pytest.approx(1)
    assert len(found.neighbors) == 12
    (elsewhere,) = vitral.search(striped_model(), pile / "copy.jpg", pile / "a", top=1)
    assert elsewhere.neighbors[0].path == str(pile / "a/3.jpg")


def test_features_are_cached_until_an_image_changes(pile: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = striped_model()
    caplog.set_level("INFO", "vitral")
    first = vitral.search(model, pile / "a/0.jpg", pile)
    assert "cached" not in caplog.text
    assert vitral.search(model, pile / "a/0.jpg", pile) == first
    assert "using cached features of 12 images" in caplog.text
    caplog.clear()
    photos(pile / "a", 1, side=50)
    assert vitral.search(model, pile / "a/1.jpg", pile) != first
    assert vitral.search(striped_model(seed=1), pile / "a/0.jpg", pile) != first
    assert "cached" not in caplog.text


def test_bad_images_are_an_error_that_names_them_unless_they_are_skipped(
    pile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bad = spoilt(pile)
    for _ in range(2):  # computed, and from the cache
        caplog.clear()
        with raises("data.bad_files", "4 of 16", "--skip-bad"):
            vitral.search(striped_model(), pile / "a/0.jpg", pile)
        assert all(str(path) in caplog.text for path in bad)
    found = vitral.search(striped_model(), pile / "a/0.jpg", pile, skip_bad=True, top=100)
    assert (found.images, sorted(found.skipped)) == (12, sorted(map(str, bad)))
    assert len(found.queries[0].neighbors) == 11
    with raises("data.bad_files"):
        vitral.search(striped_model(), bad[0], pile, skip_bad=True)


def test_what_does_not_exist_or_makes_no_sense_is_refused(pile: Path, tmp_path: Path) -> None:
    with raises("data.not_found", "nowhere"):
        vitral.search(striped_model(), pile / "a/0.jpg", tmp_path / "nowhere")
    with raises("config.out_of_range", "top"):
        vitral.search(striped_model(), pile / "a/0.jpg", pile, top=0)


def test_the_page_shows_every_query_and_its_neighbors(pile: Path, tmp_path: Path) -> None:
    page = tmp_path / "similar.html"
    (pile / "a/0.jpg").replace(pile / "a/<b>&.jpg")  # a name that is markup
    found = vitral.search(striped_model(), pile / "a", pile / "b", top=3, html=page)
    text = page.read_text()
    assert "<b>&" not in text
    assert "&lt;b&gt;&amp;.jpg" in text
    assert text.count('src="data:image/') == 7 * (1 + 3)
    assert all(Path(each.path).name in text for query in found for each in query.neighbors)
    assert "http" not in text.replace("http://www.w3.org", "")


def test_the_formats_say_the_same(pile: Path) -> None:
    found = vitral.search(striped_model(), pile / "a/0.jpg", pile / "b", top=2)
    rows = [line.split(",") for line in found.to_csv().splitlines()]
    assert rows[0] == ["query", "rank", "score", "path"]
    assert [row[3] for row in rows[1:]] == [each.path for each in found.queries[0].neighbors]
    assert json.loads(found.to_json())["queries"][0]["neighbors"][1]["path"] == rows[2][3]
    assert rows[1][3] in str(found)


def test_an_index_is_used_for_sets_large_enough_and_its_recall_is_given(
    pile: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "vitral")
    assert vitral.search(striped_model(), pile / "a/0.jpg", pile, index=True).recall is None
    assert "too few for an index" in caplog.text
    pytest.importorskip("faiss", reason="faiss is not installed: pip install 'vitral[search]'")
    photos(pile / "many", 170, side=16)
    exact = vitral.search(striped_model(), pile / "a", pile / "many", top=3)
    found = vitral.search(striped_model(), pile / "a", pile / "many", top=3, index=True)
    assert found.recall is not None
    known = {(query.path, each.path): each.score for query in exact for each in query.neighbors}
    shared = [
        (known[key], each.score)
        for query in found
        for each in query.neighbors
        if (key := (query.path, each.path)) in known
    ]
    assert shared
    assert [one for one, _ in shared] == pytest.approx([other for _, other in shared])
