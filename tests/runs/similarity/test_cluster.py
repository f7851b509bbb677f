"""Clusters of real files: the manifest, the page, and what is refused."""

import csv
from pathlib import Path

import pytest

import vitral
from tests.errors import raises
from tests.evaluation.subjects import striped_model
from tests.inference.album import photos, spoilt
from tests.runs.small import photos as labeled_photos


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_the_manifest_has_the_cluster_of_every_image_and_is_the_same_to_the_byte(tmp_path: Path) -> None:
    photos(tmp_path / "pile", 15)
    found = vitral.cluster(striped_model(), tmp_path / "pile", 4, out=tmp_path / "one.csv")
    again = vitral.cluster(striped_model(), tmp_path / "pile", 4, out=tmp_path / "two.csv", cache=False)
    assert (tmp_path / "one.csv").read_bytes() == (tmp_path / "two.csv").read_bytes()
    assert again.clusters == found.clusters
    table = rows(tmp_path / "one.csv")
    assert [row["path"] for row in table] == [f"pile/{number}.jpg" for number in range(15)]  # below the manifest
    sizes = [sum(row["cluster"] == str(each.number) for row in table) for each in found.clusters]
    assert sizes == [each.images for each in found.clusters] == sorted(sizes, reverse=True)
    for each in found.clusters:
        inside = [row for row in table if row["cluster"] == str(each.number)]
        known = {str(tmp_path / row["path"]): float(row["similarity"]) for row in inside}
        assert known[each.typical[0]] == max(known.values())
        assert each.similarity == pytest.approx(sum(float(row["similarity"]) for row in inside) / len(inside), abs=1e-5)


def test_labels_and_splits_of_the_data_stay_in_the_manifest(tmp_path: Path) -> None:
    labeled_photos(tmp_path / "photos")
    vitral.cluster(striped_model(), tmp_path / "photos", 2, out=tmp_path / "out.csv")
    table = rows(tmp_path / "out.csv")
    assert len(table) == 32
    assert all(row["path"].split("/")[1:3] == [row["split"], row["label"]] for row in table)


def test_the_page_shows_the_map_and_typical_images(tmp_path: Path) -> None:
    photos(tmp_path / "pile", 15)
    found = vitral.cluster(
        striped_model(), tmp_path / "pile", 3, out=tmp_path / "out.csv", html=tmp_path / "clusters.html"
    )
    text = (tmp_path / "clusters.html").read_text()
    assert text.count('<circle class="dot') == 15
    assert text.count('src="data:image/') == sum(len(each.typical) for each in found.clusters)


def test_what_cannot_be_done_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    photos(tmp_path / "pile", 3)
    monkeypatch.chdir(tmp_path)
    model = striped_model()
    with raises("config.out_of_range", "clusters", "at most 3"):
        vitral.cluster(model, "pile", 4)
    with raises("config.out_of_range", "clusters"):
        vitral.cluster(model, "pile", 0)
    with raises("config.unknown_format", "out", ".csv"):
        vitral.cluster(model, "pile", 2, out="clusters.txt")
    with raises("config.not_found", "nowhere"):
        vitral.cluster(model, "pile", 2, out="nowhere/out.csv")
    with raises("config.unsupported", "sample/"):
        vitral.cluster(model, "sample", 2)
    Path("pile.clusters.csv").touch()
    with raises("config.path_exists", "pile.clusters.csv"):
        vitral.cluster(model, "pile", 2)
    assert Path("pile.clusters.csv").read_bytes() == b""


def test_bad_images_are_skipped_if_asked_for(tmp_path: Path) -> None:
    photos(tmp_path / "pile", 6)
    bad = spoilt(tmp_path / "pile")
    with raises("data.bad_files"):
        vitral.cluster(striped_model(), tmp_path / "pile", 2, out=tmp_path / "out.csv")
    found = vitral.cluster(striped_model(), tmp_path / "pile", 2, out=tmp_path / "out.csv", skip_bad=True)
    assert sorted(found.skipped) == sorted(map(str, bad))
    assert len(rows(tmp_path / "out.csv")) == 6
