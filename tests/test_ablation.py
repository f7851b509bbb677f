"""The pure parts of benchmarks.ablation: which runs come next, settings that exist, and the table."""

import pytest

from benchmarks.ablation import SEEDS, VARIANTS, Cell, open_cells, report
from benchmarks.grid import Record
from vitral.core.config import override
from vitral.recipes.small import sample


def done(variant: str, seed: int, accuracy: float, seconds: int = 60) -> Record:
    return Cell(variant, seed, seconds)._asdict() | {"accuracy": accuracy, "cpu_seconds": 61.0, "steps": 700}


def test_runs_that_are_done_for_as_long_are_not_run_again() -> None:
    records = [done("as it is", 0, 0.8), done("averaging: none", 1, 0.8, seconds=30)]
    wanted = list(open_cells(records, SEEDS, 60))
    assert len(wanted) == len(VARIANTS) * len(SEEDS) - 1
    assert Cell("as it is", 0, 60) not in wanted
    assert wanted[0].seed == 0
    assert list(open_cells(records, [0], 60)) == wanted[: len(VARIANTS) - 1]


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_changes_the_recipe_of_the_demo(variant: str) -> None:
    assert (override(sample(), VARIANTS[variant]) == sample()) == (variant == "as it is")


def test_the_table_has_means_over_seeds_and_empty_cells() -> None:
    text = report([done("as it is", 0, 0.80), done("as it is", 1, 0.84), done("averaging: none", 0, 0.75)], 60)
    assert "| as it is | 82.00 | 2.83 | 2 | 700 | 61 |" in text
    assert "| averaging: none | 75.00 | - | 1 | 700 | 61 |" in text
    assert "| augmentation: none | - | - | 0 | - | - |" in text
    assert text.endswith(f"3 of {len(VARIANTS) * len(SEEDS)} runs are done.")
