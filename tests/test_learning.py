"""The pure parts of benchmarks.learning: which cells come next, the best rate, the table, and the peers' crops."""

import json
from pathlib import Path

import pytest
import torch

from benchmarks.grid import Record
from benchmarks.grid import read_records as read
from benchmarks.learning.cells import (
    DATASETS,
    MINUTES,
    RATES,
    SEEDS,
    SYSTEMS,
    Cell,
    best_rate,
    open_cells,
    searches,
)
from benchmarks.learning.report import plot, report
from benchmarks.learning.systems import crop_and_flip, shift_and_flip


def done(cell: Cell, accuracy: float) -> Record:
    return cell._asdict() | {"accuracy": accuracy, "cpu_seconds": 60.0 * cell.minutes, "parameters": 1234}


def searched(system: str, dataset: str, *accuracies: float) -> list[Record]:
    return [done(cell, value) for cell, value in zip(searches(system, dataset), accuracies, strict=False)]


def test_a_system_is_tested_with_the_rate_that_was_best_on_held_out_images_once_all_were_tried() -> None:
    records = searched("timm", "cifar10", 0.4, 0.5)
    assert best_rate(records, "timm", "cifar10") is None
    records = searched("timm", "cifar10", 0.4, 0.5, 0.3)
    assert best_rate(records, "timm", "cifar10") == RATES[1]
    wanted = [cell for cell in open_cells(records) if cell.system == "timm" and cell.dataset == "cifar10"]
    assert wanted == [Cell("timm", "cifar10", minutes, RATES[1], "test", seed) for seed in SEEDS for minutes in MINUTES]


def test_open_cells_are_searches_at_first_and_none_at_the_end() -> None:
    assert len(list(open_cells([]))) == len(SYSTEMS) * len(DATASETS) * len(RATES)
    assert all(cell.split == "val" for cell in open_cells([]))
    records: list[Record] = []
    while wanted := list(open_cells(records)):
        records += [done(cell, 0.5) for cell in wanted]
    assert len(records) == len(SYSTEMS) * len(DATASETS) * (len(RATES) + len(SEEDS) * len(MINUTES))


def test_a_cell_survives_its_file_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    cell = Cell("vitral", "cifar10", 2, RATES[0], "val")
    file = tmp_path / "cells.jsonl"
    line = json.dumps(done(cell, 0.5))
    file.write_text(f"{line}\n{line[:20]}")
    assert [Cell.of(record) for record in read(file)] == [cell]
    assert read(tmp_path / "none.jsonl") == []


def test_the_report_leaves_cells_empty_that_were_not_run(tmp_path: Path) -> None:
    tests = [done(Cell("vitral", "cifar10", 5, 1.0, "test", seed), 0.6 + seed / 100) for seed in SEEDS]
    one = done(Cell("vitral", "cifar10", 2, 1.0, "test"), 0.5)
    records = [*searched("vitral", "cifar10", 0.4, 0.5, 0.3), *tests, one]
    text = report(records)
    assert "| vitral | 50.00 (1 of 3 seeds) | 61.00 ± 1.00 | - | 1,234 | x 1 |" in text
    assert text.endswith("4 of 90 cells are done.")
    plot(records, tmp_path / "learning.png")
    assert (tmp_path / "learning.png").stat().st_size > 1_000


@pytest.mark.parametrize("flip", [False, True])
def test_a_shifted_image_is_a_window_of_the_image_with_a_border_of_zeros(flip: bool) -> None:
    torch.manual_seed(0)
    images = torch.randint(1, 256, (256, 1, 5, 4), dtype=torch.uint8)
    padded = torch.nn.functional.pad(images, (1, 1, 1, 1))
    seen = set()
    for number, found in enumerate(shift_and_flip(images, 1, flip)):
        windows = [(i, j, padded[number, :, i : i + 5, j : j + 4]) for i in range(3) for j in range(3)]
        for i, j, window in windows:
            seen |= {(i, j, False)} if torch.equal(found, window) else set()
            seen |= {(i, j, True)} if torch.equal(found, window.flip(-1)) else set()
        assert any(torch.equal(found, w) or (flip and torch.equal(found, w.flip(-1))) for _, _, w in windows)
    assert len(seen) == (18 if flip else 9)


def test_a_crop_of_the_whole_image_is_the_image_or_its_mirror_image() -> None:
    torch.manual_seed(0)
    images = torch.randint(0, 256, (16, 1, 6, 5), dtype=torch.uint8)
    torch.testing.assert_close(crop_and_flip(images, (1.0, 1.0), (1.0, 1.0), flip=False), images.float())
    for image, found in zip(images, crop_and_flip(images, (1.0, 1.0), (1.0, 1.0), flip=True), strict=True):
        assert any(torch.allclose(found, same.float(), atol=1e-3) for same in (image, image.flip(-1)))


def test_a_crop_of_a_part_lies_inside_the_image_and_moves() -> None:
    torch.manual_seed(0)
    columns = torch.arange(64.0).expand(256, 1, 64, 64)
    found = crop_and_flip(columns, (0.25, 0.25), (1.0, 1.0), flip=False)
    widths = found[:, 0, 0, -1] - found[:, 0, 0, 0]
    torch.testing.assert_close(widths, torch.full((256,), 31.5), atol=0.5, rtol=0)
    assert found.min() < 3
    assert found.max() > 60
