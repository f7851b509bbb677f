"""The whole diagnosis, its sums and its JSON."""

import json
from collections import Counter
from pathlib import Path

from tests.data.doctor.albums import diagnosed, pets, photo
from vitral.core.config import Size
from vitral.data.doctor.diagnosis import diagnosis_to_dict, summarize_resize


def test_sizes_formats_and_modes_are_of_the_files_that_decode(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, {**pets(), "train/cat/x.jpg": b"<html>"})
    assert diagnosis.examined == 31
    assert diagnosis.sizes == {Size(240, 320): 30}
    assert diagnosis.formats == {"JPEG": 30}
    assert diagnosis.modes == {"color": 30}
    assert [diagnosis.count(severity) for severity in ("error", "warning", "note")] == [1, 0, 0]


def test_resizing_counts_what_a_square_does_to_the_pictures() -> None:
    found = summarize_resize(Counter({Size(448, 448): 3, Size(112, 224): 1, Size(300, 400): 1}), Size(224, 224))
    assert found.smallest == Size(112, 224)
    assert found.median == Size(448, 448)
    assert found.largest == Size(448, 448)
    assert (found.enlarged, found.reduction, found.squeezed) == (1, 2.0, 1)
    assert summarize_resize(Counter({Size(224, 672): 1}), Size(224, 224)).reduction == 3.0


def test_the_json_has_everything_and_its_keys_stay(tmp_path: Path) -> None:
    leaks = {f"val/dog/x{n}.jpg": photo(n + 12) for n in range(9)}
    data = json.loads(json.dumps(diagnosis_to_dict(diagnosed(tmp_path, {**pets(), **leaks}))))
    assert list(data) == [
        *["where", "classes", "splits", "counts", "examined", "formats", "modes", "resizing", "findings"],
        *["errors", "warnings", "notes", "training", "command"],
    ]
    assert data["splits"] == {"train": 24, "val": 15, "test": 0}
    assert data["counts"] == {"cat": {"train": 12, "val": 3, "test": 0}, "dog": {"train": 12, "val": 12, "test": 0}}
    assert (data["resizing"]["image"], data["resizing"]["median"]) == ([224, 224], [240, 320])
    assert (data["training"]["recipe"], data["training"]["patches"]) == ("small_hundreds", 196)
    assert data["training"]["images_per_class"] == {"smallest": 12, "median": 12, "largest": 12}
    assert data["command"] == f"vitral check {tmp_path}"
    (finding,) = data["findings"]
    assert list(finding) == ["severity", "kind", "title", "count", "examples", "hint", "code"]
    assert len(finding["examples"]) == finding["count"] == 9
    assert finding["examples"][0] == {
        "files": [
            {"name": "train/dog/00.jpg", "class": "dog", "split": "train"},
            {"name": "val/dog/x0.jpg", "class": "dog", "split": "val"},
        ],
        "detail": "the same file",
    }


def test_a_set_of_which_nothing_decodes_has_no_sizes(tmp_path: Path) -> None:
    data = diagnosis_to_dict(
        diagnosed(tmp_path, {"a/1.jpg": b"no", "a/2.jpg": b"no", "b/1.jpg": b"no", "b/2.jpg": b"no"})
    )
    assert data["resizing"] is None
    assert data["errors"] == 1


def test_a_diagnosis_is_short_in_a_shell(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path, {**pets(), "train/cat/x.jpg": b"<html>"})
    assert repr(diagnosis) == f"Diagnosis({str(tmp_path)!r}: 31 images, 1 error, 0 warnings, 0 notes)"
