from pathlib import Path

import numpy as np

from tests.data.datasets.published.downloads import matlab, write, write_flowers
from tests.errors import raises
from vitral.data.datasets.source import open_data


def test_the_matlab_files_give_splits_and_labels(tmp_path: Path) -> None:
    samples = open_data("oxford-flowers", root=str(write_flowers(tmp_path)))
    assert samples.classes == ("1", "2")
    assert [(item.name[-9:-4], item.label, item.split) for item in samples.items] == [
        ("00001", 1, "train"),
        ("00004", 0, "train"),
        ("00002", 0, "val"),
        ("00003", 1, "test"),
        ("00005", 1, "test"),
    ]


def test_missing_files_and_wrong_numbers_are_named(tmp_path: Path) -> None:
    root = write_flowers(tmp_path)
    (root / "jpg/image_00005.jpg").unlink()
    with raises("data.partial_download", "jpg/image_00005.jpg"):
        open_data("oxford-flowers", root=str(root))
    sets = matlab(trnid=np.array([[1, 9]]), valid=np.array([[2]]), tstid=np.array([[3]]))
    write(root, {"setid.mat": sets})
    with raises("data.count_mismatch", "image 9", root / "setid.mat"):
        open_data("oxford-flowers", root=str(root))
    (root / "imagelabels.mat").unlink()
    with raises("data.partial_download", "imagelabels.mat"):
        open_data("oxford-flowers", root=str(root))
