"""The report as a reader meets it."""

import re
from dataclasses import replace
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.data.doctor.albums import TRAINING, diagnosed, fill, pets, photo
from tests.data.pictures import encoded, noise
from vitral.core.errors import DataError
from vitral.data.datasets.named import open_sample
from vitral.data.datasets.source import open_data, open_images
from vitral.data.doctor.checks import Example
from vitral.data.doctor.diagnosis import diagnose, diagnose_sample
from vitral.data.doctor.duplicates import IDENTICAL
from vitral.data.doctor.examine import examine_all
from vitral.data.doctor.report import COLUMNS, format_example, format_report, print_report, training_rows
from vitral.data.samples import Item


def test_a_sound_set_is_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, *table, files, sizes, _, recipe, model, images, length, classes, resize, _, advice = format_report(
        diagnosed(Path("pets"), pets())
    ).splitlines()
    assert re.findall(r"^pets|\d+", head) == ["pets", "30", "2", "24", "6"]
    assert table == ["class  train  val", "cat       12    3", "dog       12    3", ""]
    assert files == "files    JPEG; color"
    assert sizes.startswith("sizes    240x320")
    assert re.fullmatch(r"training recipe small_hundreds; .*classify", recipe)
    assert re.findall(r"^model|[\d,]*\d", model) == ["model", "4", "128", "5,000"]
    assert re.findall(r"^images|[\dx]*\d", images) == ["images", "224x224", "196", "16x16"]
    assert re.findall(r"^length|\d+", length) == ["length", "60", "60", "24"]
    assert re.findall(r"^classes|\d+", classes) == ["classes", "12"]
    assert re.findall(r"^resize|[\d.]+x?[\d.]*", resize) == ["resize", "224x224", "1.4", "0", "0", "1.5"]
    assert advice.endswith(": vitral train pets")


def test_findings_stand_worst_first_with_files_and_remedy(tmp_path: Path) -> None:
    files = {**pets(), **{f"val/cat/x{n}.jpg": photo(n) for n in range(4)}, "train/dog/x.png": photo(99)}
    lines = format_report(diagnosed(tmp_path / "my pets", files)).splitlines()
    error, *pairs, _, note, misnamed, _, _, advice = lines[16:]
    assert error.startswith("error    4 ")
    assert pairs == [f"           train/cat/0{n}.jpg = val/cat/x{n}.jpg ({IDENTICAL})" for n in range(4)]
    assert note.startswith("note     1 ")
    assert re.fullmatch(r" {11}train/dog/x\.png \(.*JPEG\)", misnamed)
    assert [lines[21][:11], lines[24][:11]] == ["         > "] * 2
    assert advice.startswith("1 ")
    assert advice.endswith(f": vitral check '{tmp_path}/my pets'")


def test_images_without_labels_have_no_classes_in_the_report(tmp_path: Path) -> None:
    samples = open_images(str(fill(tmp_path, {f"{n}.jpg": photo(n) for n in range(10)})))
    diagnosis = diagnose(samples, list(examine_all(samples, 0)), training=TRAINING, arguments="x --task masked_patches")
    lines = format_report(diagnosis).splitlines()
    assert re.findall(r"\d+", lines[0].removeprefix(str(tmp_path))) == ["10", "8", "2"]
    assert not any(line.startswith("class") for line in lines)
    assert lines[-1].endswith(": vitral train x --task masked_patches")
    assert diagnosis.count("error") == 0


def test_data_of_faults_alone_has_a_report(tmp_path: Path) -> None:
    faults: list[DataError] = []
    (tmp_path / "cat").mkdir()
    samples = open_data(str(tmp_path), on_fault=faults.append)
    lines = format_report(diagnose(samples, [], faults, arguments="x")).splitlines()
    assert re.findall(r"\d+", lines[0].removeprefix(str(tmp_path))) == ["0", "0"]
    assert lines[2].startswith(f"error    {tmp_path}/cat: ")
    assert lines[-1].endswith(": vitral check x")


@pytest.mark.parametrize(("squeezes", "word"), [(True, "squeezed"), (False, "cropped")])
def test_long_images_are_squeezed_or_cropped_as_the_training_does(tmp_path: Path, squeezes: bool, word: str) -> None:
    diagnosis = replace(diagnosed(tmp_path, pets()), training=replace(TRAINING, squeezes=squeezes))
    assert word in dict(training_rows(diagnosis))["resize"]


def test_a_thousand_classes_are_shown_by_their_ends(tmp_path: Path) -> None:
    picture = encoded(noise(8, 8).astype("uint8"), "PNG")
    files = {f"c{n:03}/{k}.png": picture for n in range(50) for k in range(1 + n)}
    lines = format_report(diagnosed(tmp_path, files)).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert [line.split()[0] for line in table[1:-1]] == [
        *(f"c{n:03}" for n in range(49, 43, -1)),
        *(f"c{n:03}" for n in range(5, -1, -1)),
    ]
    assert table[-1].startswith("... ")
    assert "38" in table[-1]


def test_wide_letters_and_long_names_keep_the_columns(tmp_path: Path) -> None:
    long = "a class with a name so long that nobody would ever type it whole, and then some more of it"
    files = {
        f"{split}/{name}/{n}.jpg": photo(n) for split in ("train", "val") for name in ("ねこ", long) for n in range(2)
    }
    lines = format_report(diagnosed(tmp_path, files)).splitlines()
    header, *rows = lines[2:5]
    assert header.index("train") + 4 == next(row for row in rows if row.startswith("a class")).index(" 2 ") + 1
    assert rows[1].startswith("ねこ")
    assert rows[0].endswith("…and then some more of it      2    2")
    assert all(cell_len(row) == cell_len(header) < COLUMNS for row in rows)


def test_an_ordinary_set_is_one_screen_and_some_files_are_told_from_all() -> None:
    lines = format_report(diagnose_sample(open_sample(), TRAINING.model_input)).splitlines()
    assert re.findall(r"\d[\d,]*\b", lines[0]) == ["6,000", "10", "5,000", "1,000", "200"]
    assert len(lines) <= 40
    assert max(map(len, lines)) <= COLUMNS


def test_an_example_names_its_files() -> None:
    items = tuple(Item(name, 0, "train") for name in "abcde")
    assert format_example(Example(items[:2], "the same")) == "a = b (the same)"
    assert format_example(Example(items)) == "a = b = c and 2 more"
    assert format_example(Example((), "cat (3)")) == "cat (3)"


@pytest.mark.parametrize("color", [True, False])
def test_severities_are_colored_on_a_terminal_only(color: bool) -> None:
    stream = StringIO()
    print_report(
        "error    bad\n         > [bold]mend[/bold] it",
        Console(file=stream, force_terminal=color, color_system="standard" if color else "auto"),
    )
    assert ("\x1b[1;31merror\x1b[0m" in stream.getvalue()) == color
    assert "[bold]mend[/bold] it\n" in stream.getvalue()
