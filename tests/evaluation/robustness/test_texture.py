"""Images without their texture."""

import numpy as np

from vitral.evaluation.robustness.texture import edges, stylize


def test_the_amplitudes_are_those_of_the_other_image_and_the_phases_stay() -> None:
    rng = np.random.default_rng(0)
    image, style = (rng.integers(60, 190, (16, 20, 3)).astype(np.uint8) for _ in range(2))
    assert np.array_equal(stylize(image, style, 0.0), image)
    own, other, found = (np.fft.fft2(each, axes=(0, 1)) for each in (image, style, stylize(image, style, 1.0)))
    assert np.corrcoef(np.abs(found).ravel(), np.abs(other).ravel())[0, 1] > 0.99
    assert np.median(np.abs(np.angle(found / own))) < 0.05


def test_edges_are_where_the_levels_change() -> None:
    image = np.zeros((6, 8, 3), dtype=np.uint8)
    image[:, 4:] = 200
    found = edges(image)
    assert found.shape == image.shape
    assert (found[:, 3:5] == 255).all()
    assert not found[:, [0, 1, 6, 7]].any()
    assert not edges(np.full((3, 3, 1), 7, dtype=np.uint8)).any()
