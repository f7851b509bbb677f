"""The report as a reader meets it."""

from io import StringIO
from pathlib import Path

import pytest
from rich.cells import cell_len
from rich.console import Console

from tests.data.doctor.albums import diagnosed, pets, photo
from tests.data.pictures import encoded, noise
from vitral.data.doctor.check import quick
from vitral.data.doctor.finding import Example
from vitral.data.doctor.report import COLUMNS, as_text, sentence, show
from vitral.data.samples import Item
from vitral.data.sources.sample import open_sample


def test_a_sound_set_is_a_few_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert as_text(diagnosed(Path("pets"), pets())).splitlines() == [
        "pets: 30 pictures of 2 classes (24 train, 6 val)",
        "",
        "class  train  val",
        "cat       12    3",
        "dog       12    3",
        "",
        "files    JPEG; colour",
        "sizes    240x320 (height x width)",
        "resize   to 224x224: 1.4 times smaller at the median; 0 enlarged, 0 squeezed by more than 1.5 times",
        "",
        "no errors, no warnings: train on it with  vitral train pets",
    ]


def test_findings_stand_worst_first_with_files_and_remedy(tmp_path: Path) -> None:
    files = {**pets(), **{f"val/cat/x{n}.jpg": photo(n) for n in range(4)}, "train/dog/x.png": photo(99)}
    lines = as_text(diagnosed(tmp_path / "my pets", files)).splitlines()
    assert lines[10:] == [
        "error    4 files are in two splits: accuracy will look too high",
        "           train/cat/00.jpg = val/cat/x0.jpg (the same file)",
        "           train/cat/01.jpg = val/cat/x1.jpg (the same file)",
        "           train/cat/02.jpg = val/cat/x2.jpg (the same file)",
        "           train/cat/03.jpg = val/cat/x3.jpg (the same file)",
        "         > keep each in one split only",
        "note     1 file is of another format than the name says",
        "           train/dog/x.png (is JPEG)",
        "         > nothing to do: the content decides",
        "",
        f"1 error: mend the errors, then run  vitral check '{tmp_path}/my pets'",
    ]


def test_a_thousand_classes_are_shown_by_their_ends(tmp_path: Path) -> None:
    picture = encoded(noise(8, 8).astype("uint8"), "PNG")
    files = {f"c{n:03}/{k}.png": picture for n in range(50) for k in range(1 + n)}
    lines = as_text(diagnosed(tmp_path, files)).splitlines()
    table = lines[2 : lines.index("", 2)]
    assert [line.split()[0] for line in table[1:-1]] == [
        *(f"c{n:03}" for n in range(49, 43, -1)),
        *(f"c{n:03}" for n in range(5, -1, -1)),
    ]
    assert table[-1] == "... and 38 more; these are the largest and the smallest"


def test_wide_letters_and_long_names_keep_the_columns(tmp_path: Path) -> None:
    long = "a class with a name so long that nobody would ever type it whole, and then some more of it"
    files = {
        f"{split}/{name}/{n}.jpg": photo(n) for split in ("train", "val") for name in ("ねこ", long) for n in range(2)
    }
    lines = as_text(diagnosed(tmp_path, files)).splitlines()
    header, *rows = lines[2:5]
    assert header.index("train") + 4 == next(row for row in rows if row.startswith("a class")).index(" 2 ") + 1
    assert rows[1].startswith("ねこ")
    assert rows[0].endswith("...      2    2")
    assert all(cell_len(row) == cell_len(header) < COLUMNS for row in rows)


def test_an_ordinary_set_is_one_screen_and_some_files_are_told_from_all() -> None:
    lines = as_text(quick(open_sample())).splitlines()
    assert lines[0] == "sample: 6,000 pictures of 10 classes (5,000 train, 1,000 test); 200 examined"
    assert len(lines) <= 40
    assert max(map(len, lines)) <= COLUMNS


def test_an_example_names_its_files() -> None:
    items = tuple(Item(name, 0, "train") for name in "abcde")
    assert sentence(Example(items[:2], "the same")) == "a = b (the same)"
    assert sentence(Example(items)) == "a = b = c and 2 more"
    assert sentence(Example((), "cat (3)")) == "cat (3)"


@pytest.mark.parametrize("colour", [True, False])
def test_severities_are_coloured_on_a_terminal_only(colour: bool) -> None:
    stream = StringIO()
    show(
        "error    bad\n         > [bold]mend[/bold] it",
        Console(file=stream, force_terminal=colour, color_system="standard" if colour else "auto"),
    )
    assert ("\x1b[1;31merror\x1b[0m" in stream.getvalue()) == colour
    assert "[bold]mend[/bold] it\n" in stream.getvalue()
