"""A model and an image become an explanation, whatever the model; what cannot be shown is said."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vitral
from tests.errors import raises
from tests.models.variants import VARIANTS, VITS, small
from tests.weights.bundles import bundle_of, loaded
from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.explanation.explain import Explainer, explain, share_distances
from vitral.explanation.explanation import Explanation
from vitral.models import NoHead, Patches, Resnet, attention_maps
from vitral.models.attention import BaseAttention
from vitral.weights.bundle import write_bundle
from vitral.weights.load import LoadedModel


@pytest.fixture(scope="module")
def picture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("pictures") / "bee.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3)).astype(np.uint8)).save(path)
    return path


def kinds(explanation: Explanation) -> list[str]:
    return list(explanation.maps)


def attends(name: str) -> bool:
    config = VARIANTS[name]
    return not isinstance(config, Resnet) and isinstance(config.mixer, BaseAttention)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", VARIANTS)
def test_every_model_shows_what_it_has_and_says_what_it_lacks(name: str, picture: Path) -> None:
    config = VARIANTS[name]
    model = loaded(config)
    found = explain(model, picture)
    named = not isinstance(config.head, NoHead)
    expected = ["rollout"] * attends(name) + ["relevance"] * (attends(name) and named)
    expected += ["attention"] * attends(name) + ["occlusion"] * named
    assert kinds(found) == expected
    assert list(found.faithfulness.curves) == (expected if named else [])
    grid = config.layout(config.image_size).grid
    assert all(values.shape == grid and np.isfinite(values).all() for values in found.maps.values())
    assert found.feature_colors.shape == (*grid, 3)
    assert found.similarity.shape == (found.cells.cells(), found.cells.cells())
    assert any("no attention" in reason for reason in found.unavailable) == (not attends(name))
    assert any("no classes" in reason for reason in found.unavailable) == (not named)
    assert bool(found.model.positions.size) != any("position" in reason for reason in found.unavailable)
    assert found.classes == (model.bundle.classes if named else ())
    assert len(found.steps) >= 5


PARTS = ["position-learned1d", "registers", "no-class-token", "pool-attention", "stem-hybrid", "stem-convolutions"]


@pytest.mark.parametrize("name", PARTS)
def test_numbers_are_the_models_own(name: str, picture: Path) -> None:
    model = loaded(VITS[name])
    image = model.bundle.preprocessing.tensor(picture.read_bytes(), "bee.png")  # (1, C, H, W)
    found = explain(model, picture, quick=True)
    with torch.no_grad():
        expected = model.model(image)[0].softmax(dim=0).numpy()  # (K,)
    np.testing.assert_allclose(found.probabilities, expected, atol=1e-5)
    np.testing.assert_allclose(found.layers[-1].probabilities, expected, atol=1e-5)
    assert found.target == model.bundle.classes[int(expected.argmax())]
    for layer, attention in zip(found.layers, attention_maps(model.model, image), strict=True):
        np.testing.assert_allclose(layer.attention, attention[0].numpy(), atol=1e-5)
    np.testing.assert_allclose(found.model.distances, [layer.distance for layer in found.layers])


def test_a_class_is_chosen_by_name_and_relevance_is_about_it(picture: Path) -> None:
    model = loaded(small())
    answers = {name: explain(model, picture, class_=name, quick=True) for name in model.bundle.classes}
    assert {each.target for each in answers.values()} == set(model.bundle.classes)
    relevance = [each.maps["relevance"] for each in answers.values()]
    assert not np.allclose(relevance[0], relevance[1])
    rollouts = [each.maps["rollout"] for each in answers.values()]
    assert all(np.array_equal(values, rollouts[0]) for values in rollouts)


def test_layers_are_chosen_by_number(picture: Path) -> None:
    model = loaded(small(depth=4))
    assert [layer.layer for layer in explain(model, picture, layers="2-3", quick=True).layers] == [2, 3]
    found = explain(model, picture, layers=[4], quick=True)
    assert [layer.layer for layer in found.layers] == [4]
    assert found.model.distances.shape == (4, 2)  # the model's own figure has them all


def test_mistakes_are_refused_before_the_image_is_read() -> None:
    nowhere = Path("nowhere.png")
    with raises("config.unknown_name", "class", 4, "'cats'", "'cat'"):
        explain(loaded(small()), nowhere, class_="cats")
    with raises("config.out_of_range", "layers", 2, 3):
        explain(loaded(small()), nowhere, layers="3")
    with raises("config.unsupported", "class"):
        explain(loaded(small(head=NoHead())), nowhere, class_="cat")
    with raises("config.unsupported", "layers"):
        explain(loaded(VARIANTS["resnet"]), nowhere, layers="1")
    with raises("weights.not_found", "no/such/run"):
        explain("no/such/run", nowhere)
    with raises("data.not_found", nowhere):
        explain(loaded(small()), nowhere)


def test_a_head_that_was_not_trained_names_nothing(picture: Path) -> None:
    """A model of masked patches carries a head that learned nothing."""
    model = loaded(small())
    masked = LoadedModel(model.model, bundle_of(small(), task="masked_patches", classes=()))
    found = explain(masked, picture)
    assert kinds(found) == ["rollout", "attention"]
    assert (found.classes, found.target, found.probabilities.size) == ((), "", 0)
    assert not any(layer.probabilities.size for layer in found.layers)
    with raises("config.unsupported", "class"):
        explain(masked, picture, class_="cat")


def test_quick_asks_the_model_once(picture: Path) -> None:
    model = loaded(small())
    found = explain(model, picture, quick=True)
    assert kinds(found) == ["rollout", "relevance", "attention"]
    assert not found.faithfulness.curves
    assert any("quick" in reason for reason in found.unavailable)


@pytest.mark.parametrize("name", ["position-learned1d", "mixer-pooling", "resnet", "head-none"])
def test_progress_comes_to_its_end(name: str, picture: Path) -> None:
    told: list[tuple[str, int, int]] = []

    @contextmanager
    def listen(message: str, total: int) -> Iterator[Callable[[int], None]]:
        counts: list[int] = []
        yield counts.append
        told.append((message, total, sum(counts)))

    explain(loaded(VARIANTS[name]), picture, progress=listen)
    assert len(told) == 1
    message, total, done = told[0]
    assert (message, done) == ("bee.png", total)


def test_a_large_grid_is_shown_in_cells_and_mapped_patch_by_patch(tmp_path: Path) -> None:
    config = small(image_size=Size(160, 80), stem=Patches(patch=Size(4, 4)))  # 40 x 20
    Image.fromarray(np.zeros((40, 40, 3), np.uint8)).save(tmp_path / "dark.png")
    found = explain(loaded(config), tmp_path / "dark.png", quick=True)
    assert found.cells == (16, 16)
    assert found.layers[0].attention.shape == (2, 257, 257)
    np.testing.assert_allclose(found.layers[0].attention.sum(axis=-1), 1, atol=1e-5)
    assert found.maps["rollout"].shape == (40, 20)
    assert found.similarity.shape == (256, 256)


def test_the_model_and_its_mode_are_left_as_they_were(picture: Path) -> None:
    model = loaded(small())
    before = {name: weight.clone() for name, weight in model.model.state_dict().items()}
    model.model.train()
    explain(model, picture, quick=True)
    assert model.model.training
    assert all(torch.equal(before[name], weight) for name, weight in model.model.state_dict().items())
    assert all(weight.grad is None for weight in model.model.parameters())


def test_the_part_that_was_seen_is_told(picture: Path) -> None:
    model = loaded(small())
    view = CenterCrop(fraction=0.5)
    cropped = model.bundle.model_copy(
        update={"preprocessing": model.bundle.preprocessing.model_copy(update={"crop": view})}
    )
    photo = explain(LoadedModel(model.model, cropped), picture, quick=True).photo
    assert (photo.top, photo.left, photo.height, photo.width) == pytest.approx((0.25, 0.25, 0.5, 0.5), abs=0.02)


def test_images_of_one_call_share_the_mean_distance(tmp_path: Path) -> None:
    explainer = Explainer(loaded(small()), "", (), True)
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, (32, 48, 3)).astype(np.uint8)
        Image.fromarray(pixels).save(tmp_path / f"{seed}.png")
    alone = [explainer.explain(path) for path in sorted(tmp_path.glob("*.png"))]
    shared = share_distances(alone)
    assert {each.model.images for each in shared} == {3}
    mean = np.mean([each.model.distances for each in alone], axis=0)
    for each in shared:
        np.testing.assert_allclose(each.model.distances, mean, rtol=1e-6)
    assert share_distances(alone[:1])[0].model.images == 1
    assert explainer.filters is explainer.filters  # found once for all images


def test_a_path_to_a_run_names_the_model(tmp_path: Path, picture: Path) -> None:
    model = loaded(small())
    (tmp_path / "garden").mkdir()
    write_bundle(tmp_path / "garden" / "best", model.bundle, model.model.state_dict(), "a card")
    for where in (tmp_path / "garden", str(tmp_path / "garden" / "best")):
        assert vitral.explain(where, str(picture), quick=True).model_name == "garden"


def test_an_explanation_shows_itself(picture: Path, tmp_path: Path) -> None:
    found = explain(loaded(small()), picture, quick=True)
    assert repr(found).startswith("<bee.png explained by the model: ")
    assert len(repr(found)) < 100
    assert repr(explain(loaded(small(head=NoHead())), picture)) == "<bee.png explained by the model>"
    assert "<iframe" in found._repr_html_()
    found.save(tmp_path / "page.html")
    assert "bee.png" in (tmp_path / "page.html").read_text(encoding="utf-8")
    drawn: dict[str, Any] = found.figures()
    assert {"rollout", "relevance", "heads", "filters", "positions", "distance"} <= set(drawn)
    assert drawn["filters"]._repr_png_().startswith(b"\x89PNG")
