"""The registry: an experiment is one file, small and with a summary."""

import sys
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.experiments import registry, studies
from vitral.experiments.registry import experiment_files, get_experiment, list_experiments

FILE = '''"""Depth: two layers against one."""

from vitral.experiments.checks import better
from vitral.experiments.experiment import Arm, Experiment

EXPERIMENT = Experiment(
    title="Depth",
    claim="deeper is better",
    arms=lambda scale: [Arm("one", {"model.depth": 1}), Arm("two", {"model.depth": 2})],
    checks=[better("two", "one")],
)
'''


def test_adding_an_experiment_is_adding_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for folder in registry.FOLDERS:
        (tmp_path / folder).mkdir()
    (tmp_path / "studies" / "toy_depth.py").write_text(FILE)
    monkeypatch.setattr(registry, "HOME", tmp_path)
    monkeypatch.setattr(studies, "__path__", [str(tmp_path / "studies")])
    assert list_experiments() == (("toy_depth", "Depth: two layers against one"),)
    try:
        assert get_experiment("toy_depth").claim == "deeper is better"
    finally:
        sys.modules.pop("vitral.experiments.studies.toy_depth", None)


def test_an_unknown_experiment_is_an_error_that_names_a_known_one() -> None:
    with raises("config.unknown_name", "table8"):
        get_experiment("table88")


@pytest.mark.parametrize("path", experiment_files().values(), ids=str)
def test_an_experiment_is_a_file_of_at_most_80_lines(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 80


def test_experiments_are_listed_in_the_order_of_the_paper_with_a_summary() -> None:
    found = list_experiments()
    assert [each.name for each in found][:1] == ["table1"]
    assert all(each.summary and each.summary[0].isupper() for each in found)
