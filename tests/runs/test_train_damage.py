"""Damaged photos in a run."""

from pathlib import Path

import numpy as np
import pytest

from tests.data.pictures import cut, encoded, noise
from tests.errors import raises
from tests.runs.small import begin, photos
from vitral.runs.evaluate import evaluate
from vitral.weights.load import load


def test_a_damaged_photo_stops_a_run_unless_it_is_lenient(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    data = photos(tmp_path / "photos")
    for split in ("train", "val"):
        (data / split / "dark/half.jpg").write_bytes(cut(encoded(noise(40, 40, 3).astype(np.uint8), "JPEG")))
    with raises("data.corrupt_image", "half.jpg"):
        begin(tmp_path)
    run = begin(tmp_path, "lenient=true", "epochs=1", out="lenient")
    assert "train/dark/half.jpg" in caplog.text
    assert not load(run.path).bundle.preprocessing.decoding.lenient  # a model is not
    with raises("data.damaged_image", "half.jpg"):
        evaluate(run.path, str(data), split="val", cache=False)
    assert evaluate(run.path, str(data), split="val", cache=False, lenient=True).images == 9
