import gzip
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.data.archives import write_digits
from tests.data.pictures import noise
from tests.data.trees import refused_at
from tests.errors import raises
from vitral.data.datasets.named import DigitsReader

LINE = ",".join(["3"] * 64)


def test_ink_from_0_to_16_becomes_gray_from_0_to_255(tmp_path: Path) -> None:
    ink = np.arange(17 * 64).reshape(17, 8, 8) % 17
    write_digits(tmp_path, ink, np.arange(17) % 10)
    images, labels = DigitsReader(str(tmp_path)).load("digits")
    levels = [0, 16, 32, 48, 64, 80, 96, 112, 128, 143, 159, 175, 191, 207, 223, 239, 255]  # 255 n / 16, halves up
    assert images.tolist() == [[[levels[value] for value in row] for row in image] for image in ink.tolist()]
    assert labels.tolist() == [*range(10), *range(7)]


def test_a_folder_has_a_loader_if_the_file_is_there(tmp_path: Path) -> None:
    assert DigitsReader.find(tmp_path) is None
    write_digits(tmp_path, noise(2, 8, 8, highest=16), np.array([1, 2]))
    assert DigitsReader.find(tmp_path) == DigitsReader(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (f"{LINE},11", ("data.bad_label", "11", "0", "10")),
        (f"{LINE},1\n{LINE},-1", ("data.bad_label", "-1", "1")),
        (f"{LINE}", ("data.bad_archive", "64", "16")),
        (f"17{LINE[1:]},1", ("data.bad_archive", "64", "16")),
        (f"-1{LINE[1:]},1", ("data.bad_archive", "64", "16")),
        (f"{LINE},1\n{LINE}", ("data.bad_archive",)),
        ("<html>", ("data.bad_archive",)),
        (f"{LINE},cat", ("data.bad_archive",)),
        (f"{10**30}{LINE[1:]},1", ("data.bad_archive",)),
        ("", ("data.bad_archive", "64", "16")),
    ],
)
def test_a_damaged_table_is_refused_by_name(tmp_path: Path, text: str, error: tuple[str, ...]) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(text.encode()))
    with raises(*error) as caught:
        DigitsReader(str(tmp_path)).load("digits")
    assert refused_at(caught) == str(path)


def test_a_file_that_is_cut_off_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "digits.csv.gz"
    path.write_bytes(gzip.compress(f"{LINE},1".encode())[:-9])
    with raises("data.bad_archive", path):
        DigitsReader(str(tmp_path)).load("digits")


def test_scikit_learn_is_found_and_not_imported(tmp_path: Path) -> None:
    """A package of that name that may not be run."""
    (tmp_path / "sklearn").mkdir()
    (tmp_path / "sklearn/__init__.py").write_text("raise SystemExit('imported')")
    code = "from vitral.data.datasets.named import scikit_learn_folders; print(*scikit_learn_folders())"
    run = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert run.stdout.strip() == str(tmp_path / "sklearn/datasets/data")
