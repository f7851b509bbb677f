"""Seeing the doctor: every file, or some of them in a moment."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.data.doctor.albums import fill, found, names, pets, photo
from tests.data.pictures import encoded, noise
from vitral.core.config import Size
from vitral.data.datasets.source import open_data
from vitral.data.doctor import diagnosis as module
from vitral.data.doctor.checks import ModelInput
from vitral.data.doctor.diagnosis import FEW_FILES, Diagnosis, diagnose_all, diagnose_sample
from vitral.data.samples import Samples


def check_sample(samples: Samples) -> Diagnosis:
    return diagnose_sample(samples, ModelInput(Size(64, 64), Size(16, 16)))


def test_check_looks_into_every_file(tmp_path: Path) -> None:
    samples = open_data(str(fill(tmp_path, {**pets(), "val/cat/x.jpg": photo(0)})))
    diagnosis = diagnose_all(samples, workers=0)
    assert diagnosis.examined == 31
    assert set(found(diagnosis)) == {"leak"}


def test_quick_looks_into_a_few_files_and_counts_them_all(tmp_path: Path) -> None:
    files = {
        f"{'a' if n < 30 else 'b'}/{n}.png": encoded(noise(12, 12, seed=n).astype("uint8"), "PNG") for n in range(400)
    }
    samples = open_data(str(fill(tmp_path, files)))
    diagnosis = check_sample(samples)
    assert diagnosis.examined == FEW_FILES
    assert "imbalance" in found(diagnosis)
    assert check_sample(samples) == diagnosis


def test_quick_finds_what_is_wrong_with_a_small_set(tmp_path: Path) -> None:
    samples = open_data(str(fill(tmp_path, {**pets(), "val/cat/x.jpg": b"<html>"})))
    diagnosis = check_sample(samples)
    assert diagnosis.examined == 31
    assert set(found(diagnosis)) == {"corrupt"}


def test_quick_stops_when_it_has_read_enough(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW_BYTES", 3 * len(photo(0)))
    samples = open_data(str(fill(tmp_path, {name: photo(0) for name in pets()})))
    assert check_sample(samples).examined == 4


def test_quick_tells_of_files_that_vanished(tmp_path: Path) -> None:
    samples = open_data(str(fill(tmp_path, pets())))
    gone = samples.items[0].name
    (tmp_path / gone).unlink()
    finding = found(check_sample(replace(samples, notes=())))["corrupt"]
    assert names(finding) == [(gone,)]


@pytest.mark.parametrize(("side", "kinds"), [(64, set()), (256, {"enlarged"})])
def test_what_is_upscaled_depends_on_the_size_of_the_training(tmp_path: Path, side: int, kinds: set[str]) -> None:
    files = {
        f"{split}/{part}/{n}.png": encoded(
            noise(32, 32, seed=100 * (split == "val") + 50 * (part == "a") + n).astype("uint8"), "PNG"
        )
        for split in ("train", "val")
        for part in "ab"
        for n in range(10)
    }
    samples = open_data(str(fill(tmp_path, files)))
    assert set(found(diagnose_sample(samples, ModelInput(Size(side, side), Size(16, 16))))) == kinds
