"""Figures are pictures that can be looked at: real PNG, the right colors at the right place, any model."""

import struct
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.errors import raises
from tests.explanation.stand_in import stand_in, stand_in_resnet
from vitral.explanation.explanation import Explanation, Faithfulness, Photo
from vitral.explanation.figures import (
    HUES,
    distinct_stems,
    figures,
    map_figure,
    plain_text,
    summary_attention,
    write_figures,
)
from vitral.explanation.page.pictures import overlay_map
from vitral.models.base import Grid

WHOLE = {"rollout", "relevance", "attention", "occlusion", "heads", "logit_lens", "faithfulness", "features"}
MODEL = {"filters", "positions", "distance"}


def size_of(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])


def gray_photo(height: int, width: int, part: tuple[float, float, float, float] = (0.0, 0.0, 1.0, 1.0)) -> Photo:
    return Photo("x.png", np.full((height, width, 3), 128, np.uint8), np.zeros((16, 16, 3), np.uint8), *part)


@pytest.mark.parametrize("explanation", [stand_in(registers=2), stand_in(Grid(1, 1), 1, 1)], ids=["usual", "least"])
@pytest.mark.sampled(2)
def test_every_figure_is_a_png_that_can_be_opened(explanation: Explanation) -> None:
    found = figures(explanation)
    assert set(found) == WHOLE | MODEL
    for drawing in found.values():
        png = drawing._repr_png_()
        width, height = size_of(png)
        assert 400 < width < 3000
        assert 200 < height < 4000
        pixels = np.asarray(Image.open(BytesIO(png)).convert("RGB"))
        assert pixels.std() > 5
        assert (pixels[:3] == 255).all()  # nothing touches the edge of the paper
        assert (pixels[:, -3:] == 255).all()


def test_what_a_model_lacks_is_not_drawn() -> None:
    assert "heads" not in figures(stand_in_resnet())
    assert "faithfulness" not in figures(replace(stand_in(), faithfulness=Faithfulness()))
    assert "logit_lens" not in figures(stand_in(classes=()))


def test_names_are_shown_as_they_stand() -> None:
    """A dollar begins a formula to matplotlib, and not every font has every letter."""
    strange = ("$x^2_{", "猫", "a\nb", "n" * 300, "%s", "ß")
    explanation = stand_in(classes=strange, name="$\\frac{.jpg")
    found = figures(explanation)
    for name in ("relevance", "logit_lens", "faithfulness"):
        size_of(found[name].png())
    assert plain_text("a$b") == r"a\$b"
    assert len(plain_text("x" * 500, 3)) < 40


@pytest.mark.parametrize("place", [(0, 0), (1, 2), (2, 1)])
def test_the_map_shines_where_its_patch_is_on_the_whole_picture(place: tuple[int, int]) -> None:
    """What was seen is the lower right part: half of the height, three quarters of the width."""
    photo = gray_photo(640, 640, (0.5, 0.25, 0.5, 0.75))
    values = np.zeros((3, 3), np.float32)
    values[place] = 1
    found = overlay_map(photo, values).astype(float)
    assert found.shape == (640, 640, 3)
    warm = found[..., 0] - found[..., 2]
    row, column = np.unravel_index(warm.argmax(), warm.shape)
    assert row == pytest.approx(320 + (place[0] + 0.5) * 320 / 3, abs=60)
    assert column == pytest.approx(160 + (place[1] + 0.5) * 480 / 3, abs=90)
    outside = [found[:320], found[:, :160]]
    assert all((part == part[..., :1]).all() and part.min() > 180 for part in outside)  # pale, and gray


def test_what_speaks_against_a_class_is_blue() -> None:
    found = overlay_map(gray_photo(400, 400), np.array([[1.0, -1.0]], np.float32)).astype(float)
    assert found[200, 40, 0] > found[200, 40, 2]
    assert found[200, 360, 2] > found[200, 360, 0]


def test_a_frame_is_drawn_around_a_part_and_none_around_the_whole() -> None:
    explanation = stand_in()
    explanation = replace(explanation, maps={"rollout": np.ones((6, 8), np.float32)})
    whole = map_figure(replace(explanation, photo=gray_photo(300, 400)), "rollout")
    part = map_figure(replace(explanation, photo=gray_photo(300, 400, (0.0, 0.25, 1.0, 0.5))), "rollout")
    assert len(whole.axes[0].patches) == 0
    box = part.axes[0].patches[0]
    assert box.get_bbox().bounds == pytest.approx((100, 0, 200, 300))  # type: ignore[attr-defined]


def test_heads_show_what_is_read() -> None:
    explanation = stand_in(registers=2)
    layer = explanation.layers[0]
    found = summary_attention(layer, explanation)
    np.testing.assert_array_equal(found, layer.attention[:, 0, 3:].reshape(2, 6, 8))
    without = replace(explanation, layout=explanation.layout._replace(cls=0, registers=3))
    np.testing.assert_allclose(
        summary_attention(layer, without), layer.attention[:, 3:, 3:].mean(axis=1).reshape(2, 6, 8), rtol=1e-6
    )


def luminance(hue: str) -> float:
    parts = [int(hue[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_hues_stand_out_from_paper() -> None:
    assert all((1.05) / (luminance(hue) + 0.05) > 1.9 for hue in HUES)
    assert len(set(HUES)) == len(HUES)


def test_files_are_named_by_the_image_and_the_model(tmp_path: Path) -> None:
    one = stand_in(Grid(2, 2), layers=1, heads=1, classes=())
    few = replace(one, maps={}, faithfulness=Faithfulness())
    found = write_figures(tmp_path / "new" / "figures", [few, few])
    names = {path.name for path in found}
    of_images = {f"{stem}-{name}.png" for stem in ("bee", "bee-2") for name in ("heads", "features")}
    assert names == of_images | {f"model-{name}.png" for name in MODEL}
    assert {path.name for path in (tmp_path / "new" / "figures").iterdir()} == names


@pytest.mark.parametrize(
    ("names", "stems"),
    [
        (["a.jpg", "b.jpg"], ["a", "b"]),
        (["a.jpg", "a.png", "a.gif"], ["a", "a-2", "a-3"]),
        (["a", "a-2", "a"], ["a", "a-2", "a-3"]),
    ],
)
def test_two_images_of_one_name_have_files_of_their_own(names: Sequence[str], stems: list[str]) -> None:
    assert distinct_stems(names) == stems


def test_a_folder_that_cannot_be_made_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    inside = tmp_path / "file" / "inside"
    with raises("file.write_failed", inside):
        write_figures(inside, [stand_in(Grid(2, 2), layers=1)])
    drawing = next(iter(figures(stand_in(Grid(2, 2), layers=1)).values()))
    with raises("file.write_failed", inside / "map.png"):
        drawing.save(inside / "map.png")


def test_nothing_is_left_in_the_global_state_of_pyplot() -> None:
    figures(stand_in(Grid(2, 2), layers=1))["filters"].png()
    assert "matplotlib.pyplot" not in sys.modules
