"""Mistakes on the command line: a code, the option, and what to type instead."""

import pytest

from tests.cli.terminal.test_app import run


@pytest.mark.parametrize(
    ("line", "code", "where"),
    [
        ("predict model cat.jpg --top five", "config.wrong_type", "--top"),
        ("predict model cat.jpg --top 1.5", "config.wrong_type", "--top"),
        ("predict model cat.jpg --top 0", "config.out_of_range", "--top"),
        ("predict model cat.jpg --batch-size 0", "config.out_of_range", "--batch-size"),
        ("predict model cat.jpg --merge -1", "config.out_of_range", "--merge"),
        ("evaluate model photos --batch-size many", "config.wrong_type", "--batch-size"),
        ("evaluate model photos --seed 0.1", "config.wrong_type", "--seed"),
        ("evaluate model photos --workers some", "config.wrong_type", "--workers"),
        ("check photos --workers -1", "config.out_of_range", "--workers"),
        ("convert model out --channels rgb", "config.wrong_type", "--channels"),
        ("convert model out --layers 0,x", "config.wrong_type", "--layers"),
        ("export model --images 0", "config.out_of_range", "--images"),
        ("export model --batch-size some", "config.wrong_type", "--batch-size"),
        ("bench --threads 0", "config.out_of_range", "--threads"),
        ("bench --batches 1,b", "config.wrong_type", "--batches"),
        ("predict model cat.jpg --tpo 3", "config.unknown_option", "--tpo"),
        ("--quit", "config.unknown_option", "--quit"),
        ("predict model cat.jpg --top", "config.missing_value", "--top"),
    ],
)
def test_a_wrong_option_is_named_with_a_code(line: str, code: str, where: str) -> None:
    done = run(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    first, second, *_ = done.stderr.splitlines()
    assert first.startswith(f"error[{code}]: ")
    assert second == f"where: {where}"


@pytest.mark.parametrize(
    ("line", "code", "shown"),
    [
        ("preditc model cat.jpg", "config.unknown_verb", "'predict'"),
        ("photos/", "config.unknown_verb", "predict"),
        ("predict model", "config.missing_value", "IMAGE"),
        ("check photos more", "config.usage", "more"),
        ("predict model cat.jpg --strict=yes", "config.usage", "--strict"),
        ("predict model cat.jpg --tpo 3", "config.unknown_option", "--top"),
    ],
)
def test_a_mistake_is_answered_with_what_to_type(line: str, code: str, shown: str) -> None:
    done = run(*line.split())
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error[{code}]: ")
    assert shown in done.stderr
