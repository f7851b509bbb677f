"""The features in the report of a run without labels."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.runs.small import begin, recipe_and_samples
from vitral.models.registry import model_config
from vitral.runs.callbacks.features import FeatureMonitor, FeatureSnapshot
from vitral.runs.report.features import CELLS, MAP_SIDE, attention_grid, feature_section

CPU = torch.device("cpu")
TASK = "task=masked_patches"


@pytest.fixture
def monitor(home: Path) -> FeatureMonitor:
    return FeatureMonitor(*recipe_and_samples(home / "photos", TASK), CPU)


def snapshot(monitor: FeatureMonitor, width: int = 5) -> FeatureSnapshot:
    """Features of each class around a direction of its own."""
    assert monitor.labels is not None
    rng = np.random.default_rng(0)
    rows = [
        (np.eye(width)[labels] * 4 + rng.normal(size=(len(labels), width)) * 0.2).astype(np.float32)
        for labels in (monitor.labels.searched, monitor.labels.asked)
    ]
    return FeatureSnapshot(7, *rows)


def test_neighbors_and_clusters_follow_the_features(monitor: FeatureMonitor) -> None:
    section = feature_section(monitor, snapshot(monitor))
    assert section is not None
    assert (section.step, section.images) == (7, 32)
    assert dict(section.facts)["k-NN accuracy, with labels that training did not use"] == "100.0%"
    assert section.neighbors
    for row in section.neighbors:
        assert [found.same for found in row.neighbors] == [True] * 6
        own = row.query.name.split("/")[-2]
        assert all(found.name.split("/")[-2] == own for found in row.neighbors)
    assert sum(row.images for row in section.clusters) == 32
    assert all(row.classes in {"bright 100.0%", "dark 100.0%"} for row in section.clusters)


def test_images_are_on_the_map_once_and_no_two_thumbnails_overlap(monitor: FeatureMonitor) -> None:
    section = feature_section(monitor, snapshot(monitor))
    assert section is not None
    found = section.map
    assert 2 <= len(found.images) <= 32
    assert len({each.label for each in found.images}) == len(found.images)
    places = {(round(each.x / found.cell), round(each.y / found.cell)) for each in found.images}
    assert len(places) == len(found.images)
    assert all(0 <= column < CELLS and 0 <= row < CELLS for column, row in places)
    assert all(0 <= each.x < MAP_SIDE and 0 <= each.y < MAP_SIDE for each in found.images)


def test_features_that_are_not_finite_are_not_drawn(monitor: FeatureMonitor) -> None:
    found = snapshot(monitor)
    found.asked[0, 0] = np.inf
    assert feature_section(monitor, found) is None


def test_the_attention_of_each_head_is_a_picture_of_the_patches(monitor: FeatureMonitor) -> None:
    torch.manual_seed(0)
    found = attention_grid(monitor.recipe.model.build().eval(), monitor)
    assert found is not None
    assert found.headings == ("image", "head 1", "head 2")
    assert [len(row.pictures) for row in found.rows] == [3] * 4
    assert attention_grid(model_config("R50x1", {"image_size": 32}).build_empty(), monitor) is None


def test_the_report_of_a_run_has_the_sections_and_opens_without_a_network(home: Path) -> None:
    run = begin(home, TASK)
    text = run.report.read_text()
    for place in ("map", "neighbors", "clusters", "heads", "masked", "curves"):
        assert f'<section id="{place}">' in text
        assert f'href="#{place}"' in text
    assert "k-NN accuracy" in text
    assert not re.search(r'(src|href)="(?!data:|#)', text)
    labeled = begin(home, "epochs=1", out="labeled").report.read_text()
    assert '<section id="map">' not in labeled


def test_the_report_is_there_while_the_run_goes_on(home: Path) -> None:
    seen: list[str] = []

    def watch(event: object) -> None:
        if type(event).__name__ == "Evaluated":
            seen.append((home / "run/report.html").read_text())

    begin(home, TASK, callbacks=[watch])
    assert 'class="mark running"' in seen[0]
    assert '<section id="map">' in seen[0]
