import os
import sys
from pathlib import Path

import pytest

from tests.errors import raises
from vitral.core.errors import DataError
from vitral.data.datasets.files import FileStore
from vitral.data.datasets.source import open_data
from vitral.data.samples import Row, Samples, StratifiedSplit, build_samples, format_names


def samples(*rows: Row) -> Samples:
    return build_samples("photos", rows, FileStore("photos"), StratifiedSplit())


def test_classes_are_numbered_in_the_order_of_their_names_whatever_the_order_of_rows() -> None:
    rows = [Row("1", "dog", "train"), Row("2", "cat", "train"), Row("3", "ant", "train"), Row("4", "dog", "test")]
    found = samples(*rows)
    assert found.classes == ("ant", "cat", "dog")
    assert [item.label for item in found.items] == [2, 1, 0, 2]
    assert found == samples(*reversed(rows))


def test_rows_with_a_held_out_split_are_not_divided() -> None:
    found = samples(
        Row("1", "cat", "train"), Row("2", "cat", "train"), Row("3", "dog", "train"), Row("4", "dog", "test")
    )
    assert (len(found.of("train")), len(found.of("val")), len(found.of("test"))) == (3, 0, 1)
    (note,) = found.notes
    assert note.endswith("test: cat")


def test_rows_for_training_alone_are_divided_and_it_is_told() -> None:
    found = samples(Row("1", "cat", "train"), Row("2", "cat", "train"), Row("3", "dog", "train"))
    assert found.counts("val") == (1, 0)
    share, alone = found.notes
    assert "20%" in share
    assert "seed 0" in share
    assert alone.endswith(": dog")


def test_a_class_that_training_never_sees_is_refused() -> None:
    with raises("data.class_not_in_train", "photos", "'elk'", "test", 3):
        samples(Row("1", "cat", "train"), Row("2", "dog", "train"), Row("3", "elk", "test"))


def test_two_spellings_of_an_accent_are_one_class() -> None:
    found = samples(Row("1", "caf\u00e9", "train"), Row("2", "cafe\u0301", "train"), Row("3", "tea", "train"))
    assert found.classes == ("caf\u00e9", "tea")


def test_letters_that_fold_to_the_same_are_alike() -> None:
    with raises("data.ambiguous_class", "'STRASSE'", "'straße'"):
        samples(Row("1", "straße", "train"), Row("2", "STRASSE", "train"))


def test_a_long_list_is_cut_after_five() -> None:
    assert format_names(["a", "b", "c", "d", "e"]) == "a, b, c, d, e"
    assert format_names(["a", "b", "c", "d", "e", "f", "g"]) == "a, b, c, d, e and 2 more"
    assert format_names([f"n{number}" for number in range(2000)], 2) == "n0, n1 and 1,998 more"


def test_paths_do_not_enter_the_fingerprint(tmp_path: Path) -> None:
    prints = []
    for home in ("here", "there"):
        root = tmp_path / home
        root.mkdir()
        for name in ("1", "2"):
            (root / name).write_bytes(b"x")
        rows = [Row("1", "cat", "train"), Row("2", "dog", "train")]
        prints.append(build_samples(home, rows, FileStore(str(root)), StratifiedSplit()).fingerprint())
    assert prints[0] == prints[1]


@pytest.mark.skipif(sys.platform != "linux", reason="only there a name may be any bytes")
def test_a_class_name_that_is_not_utf8_is_refused_before_training(tmp_path: Path) -> None:
    for name in (b"good", b"caf\xe9"):
        folder = os.path.join(os.fsencode(tmp_path), name)
        os.mkdir(folder)
        for number in range(3):
            Path(os.fsdecode(os.path.join(folder, b"%d.png" % number))).write_bytes(b"x")
    with raises("data.bad_class_name", tmp_path):
        open_data(str(tmp_path))
    faults: list[DataError] = []
    open_data(str(tmp_path), on_fault=faults.append)
    assert [fault.code for fault in faults] == ["data.bad_class_name"]
