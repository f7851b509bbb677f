"""The report as a reader meets it."""

import re
from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.data.doctor.albums import diagnosed, pets, photo
from tests.data.pictures import encoded, noise
from vitral.data.datasets.named import open_sample
from vitral.data.doctor.checks import Example
from vitral.data.doctor.diagnosis import check_sample
from vitral.data.doctor.duplicates import IDENTICAL
from vitral.data.doctor.report import COLUMNS, format_example, format_report, print_report
from vitral.data.samples import Item


def test_a_sound_set_is_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    head, _, *table, files, sizes, resize, _, advice = format_report(diagnosed(Path("pets"), pets())).splitlines()
    assert re.findall(r"^pets|\d+", head) == ["pets", "30", "2", "24", "6"]
    assert table == ["class  train  val", "cat       12    3", "dog       12    3", ""]
    assert files == "files    JPEG; color"
    assert sizes.startswith("sizes    240x320")
    assert re.findall(r"^resize|[\d.]+x?[\d.]*", resize) == ["resize", "224x224", "1.4", "0", "0", "1.5"]
    assert advice.endswith("  vitral train pets")


def test_findings_stand_worst_first_with_files_and_remedy(tmp_path: Path) -> None:
    files = {**pets(), **{f"val/cat/x{n}.jpg": photo(n) for n in range(4)}, "train/dog/x.png": photo(99)}
    lines = format_report(diagnosed(tmp_path / "my pets", files)).splitlines()
    error, *pairs, _, note, misnamed, _, _, advice = lines[10:]
    assert error.startswith("error    4 ")
    assert pairs == [f"           train/cat/0{n}.jpg = val/cat/x{n}.jpg ({IDENTICAL})" for n in range(4)]
    assert note.startswith("note     1 ")
    assert re.fullmatch(r" {11}train/dog/x\.png \(.*JPEG\)", misnamed)
    assert [lines[15][:11], lines[18][:11]] == ["         > "] * 2
    assert advice.startswith("1 ")
    assert advice.endswith(f"  vitral check '{tmp_path}/my pets'")


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
    assert rows[0].endswith("...      2    2")
    assert all(cell_len(row) == cell_len(header) < COLUMNS for row in rows)


def test_an_ordinary_set_is_one_screen_and_some_files_are_told_from_all() -> None:
    lines = format_report(check_sample(open_sample())).splitlines()
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
