"""The transform of a bundle is what the model was trained on, as one function of an image."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor
from torch.utils.data import Dataset

from tests.data.pictures import encoded, noise
from tests.errors import raises
from tests.processes import run_forked
from tests.weights.bundles import TINY, bundle_of
from vitral.core.config import Size
from vitral.data.transforms.preprocessing import IMAGENET, Preprocessing

BUNDLE = bundle_of(preprocessing=Preprocessing(image_size=TINY.image_size, normalize=IMAGENET))
PIXELS = noise(150, 130, 3).astype(np.uint8)


class Photos(Dataset[Tensor]):
    """A dataset as users write it."""

    def __init__(self, paths: list[Path], transform: Preprocessing) -> None:
        self.paths, self.transform = paths, transform

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Tensor:
        with Image.open(self.paths[index]) as image:
            return self.transform(image)


def test_every_kind_of_image_becomes_the_tensor_that_evaluation_sees(tmp_path: Path) -> None:
    path = tmp_path / "cat.jpg"
    path.write_bytes(encoded(PIXELS, "JPEG"))
    expected = BUNDLE.preprocessing.tensor(path.read_bytes(), "cat.jpg")[0]  # (C, H, W)
    assert expected.shape == (3, *TINY.image_size)
    with Image.open(path) as opened:
        for image in (path, str(path), path.read_bytes(), opened):
            found = BUNDLE.transform(image)
            assert found.dtype == torch.float32
            assert torch.equal(found, expected)
    exact = BUNDLE.transform(encoded(PIXELS, "PNG"))
    assert torch.equal(BUNDLE.transform(PIXELS), exact)
    assert torch.equal(BUNDLE.transform(Image.fromarray(PIXELS)), exact)
    assert torch.equal(BUNDLE.transform(PIXELS / 255), exact)


def test_a_transform_is_frozen_and_picklable() -> None:
    copy = pickle.loads(pickle.dumps(BUNDLE.transform))
    assert copy == BUNDLE.transform
    assert torch.equal(copy(PIXELS), BUNDLE.transform(PIXELS))
    with pytest.raises((ValidationError, TypeError)):
        BUNDLE.transform.image_size = Size(1, 1)


LOAD = """
import sys
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from tests.weights.test_bundle_transform import BUNDLE, Photos

start, *files = sys.argv[1:]
paths = [Path(file) for file in files]
loader = DataLoader(Photos(paths, BUNDLE.transform), batch_size=2, num_workers=1, multiprocessing_context=start)
assert torch.equal(torch.cat(list(loader)), torch.stack([BUNDLE.transform(path) for path in paths]))
print("equal")
"""


@pytest.mark.parametrize("start", ["fork", "spawn"])
@pytest.mark.sampled(2)
def test_a_transform_works_in_the_workers_of_a_data_loader(start: str, tmp_path: Path) -> None:
    paths = [tmp_path / f"{number}.png" for number in range(4)]
    for number, path in enumerate(paths):
        path.write_bytes(encoded(noise(40, 50, 3, seed=number).astype(np.uint8), "PNG"))
    # A process of its own: one in which OpenVINO has run must not be forked.
    done = run_forked(start, *map(str, paths), code=LOAD, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr


def test_a_wrong_image_is_named(tmp_path: Path) -> None:
    with raises("data.not_found", tmp_path / "none.jpg"):
        BUNDLE.transform(tmp_path / "none.jpg")
    (tmp_path / "text.jpg").write_text("not an image")
    with raises("data.unknown_format", tmp_path / "text.jpg"):
        BUNDLE.transform(str(tmp_path / "text.jpg"))
