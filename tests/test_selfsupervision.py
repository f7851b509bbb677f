"""The pure parts of benchmarks.selfsupervision: which cells come next, the recipes, the table and the page."""

from pathlib import Path

import pytest

from benchmarks.grid import Record, read_records
from benchmarks.selfsupervision.__main__ import CELLS, PAGE
from benchmarks.selfsupervision.arms import pretraining, tuning
from benchmarks.selfsupervision.cells import ARMS, METHODS, PLAIN, SCRATCH, WEAK, Cell, open_cells, seeds
from benchmarks.selfsupervision.report import plot, report, with_table

WANTED = Cell("")


def done(cell: Cell, accuracy: float) -> Record:
    stage = {"epochs": 4.0, "cpu_seconds": 300.0}
    return cell._asdict() | {"knn": 0.5, "accuracy": accuracy, "pretraining": stage, "tuning": stage}


def test_open_cells_are_all_seeds_of_all_arms_once_and_none_at_the_end() -> None:
    cells = list(open_cells([], WANTED))
    assert sorted(cells) == sorted(WANTED._replace(arm=arm, seed=seed) for arm in ARMS for seed in seeds(arm))
    assert [cell.arm for cell in cells[:3]] == [*PLAIN, "dino"]
    assert list(open_cells([done(cell, 0.5) for cell in cells], WANTED)) == []
    assert len(list(open_cells([done(cells[2], 0.5)], WANTED._replace(minutes=1.0)))) == len(cells)


@pytest.mark.parametrize("arm", [*METHODS, *WEAK])
def test_methods_share_an_encoder_which_is_that_of_scratch(arm: str) -> None:
    cell = Cell(arm, seed=2)
    without, tuned = pretraining(cell), tuning(cell, "weights")
    assert (without.model == tuned.model.model_copy(update={"head": without.model.head})) == (arm != "igpt")
    assert without.task.kind == arm
    assert (without.seed, tuned.seed, tuned.data.fraction, tuned.data.split.seed) == (2, 2, 0.1, 2)
    assert tuning(Cell(SCRATCH[0])).model == tuned.model


def test_the_table_has_means_over_seeds_and_empty_cells(tmp_path: Path) -> None:
    records = [done(Cell("dino", seed), 0.5 + seed / 100) for seed in (0, 1, 2)] + [done(Cell("scratch"), 0.4)]
    text = report(records, WANTED)
    assert "| DINO | 50.00 ± 0.00 | - | 51.00 ± 1.00 | 4.0 | 600 |" in text
    assert "| from scratch, same encoder and recipe | 50.00 (1 of 3 seeds) | - | 40.00 (1 of 3 seeds) |" in text
    assert "| SimMIM | - | - | - | - | - |" in text
    assert text.endswith("4 of 30 cells are done.")
    plot(records, tmp_path / "plot.png", WANTED)
    assert (tmp_path / "plot.png").stat().st_size > 1_000


def test_the_page_has_the_table_of_the_cells() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_table(page, read_records(CELLS), WANTED) == page
