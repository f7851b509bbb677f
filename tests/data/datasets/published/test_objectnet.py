from io import BytesIO
from pathlib import Path

import numpy as np

from tests.data.datasets.published.downloads import picture, write, write_objectnet
from tests.errors import raises
from vitral.data.datasets.pack import pack
from vitral.data.datasets.source import open_data


def test_photos_have_imagenets_numbers_and_no_border(tmp_path: Path) -> None:
    samples = open_data("objectnet", root=str(write_objectnet(tmp_path)))
    assert samples.classes == ("analog clock", "digital clock", "rocking chair")
    assert dict(samples.label_sets) == {"images/alarm_clock/a.png": (0, 1), "images/chair/b.png": (2,)}
    assert {item.split for item in samples.items} == {"test"}
    pixels = np.load(BytesIO(samples.read(samples.items[1])), allow_pickle=False)
    assert pixels.shape == (16, 16, 3)
    assert set(pixels.ravel().tolist()) == {90}
    assert "2 of its 3 classes" in samples.notes[1]
    with raises("data.several_labels", "objectnet"):
        pack(samples, tmp_path / "out")


def test_a_photo_without_its_border_and_missing_files_are_refused(tmp_path: Path) -> None:
    root = write_objectnet(tmp_path)
    write(root, {"images/chair/b.png": picture(format="PNG")})
    samples = open_data("objectnet", root=str(root))
    with raises("data.wrong_set", "b.png"):
        samples.read(samples.items[1])
    write(root, {"mappings/objectnet_to_imagenet_1k.json": b'{"Chair": "throne"}'})
    with raises("data.bad_archive", "throne"):
        open_data("objectnet", root=str(root))
    (root / "mappings/imagenet_to_label_2012_v2").unlink()
    with raises("data.partial_download", "imagenet_to_label_2012_v2", "objectnet-1.0.zip"):
        open_data("objectnet", root=str(root))
