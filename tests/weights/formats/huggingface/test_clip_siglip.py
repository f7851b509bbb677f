"""SigLIP's vision tower of transformers."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

import vitral
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.models.pool import AttentionPool, MeanPool

FIXTURES = {"hf_siglip": AttentionPool(), "hf_siglip_uneven": AttentionPool(), "hf_siglip_head": MeanPool()}


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path, name))
    check_answers(loaded, name)
    assert vit(loaded).pool == FIXTURES[name]


@pytest.mark.parametrize("name", FIXTURES)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    check_round_trip(vitral.load(folder(tmp_path / "theirs", name)), tmp_path / "ours", "hf-siglip")


@pytest.mark.parametrize("name", FIXTURES)
def test_without_a_config_names_and_shapes_tell(tmp_path: Path, name: str) -> None:
    check_answers(vitral.load(alone(tmp_path, name), settings={"mixer.heads": 3}, format="hf-siglip"), name)


def test_the_tower_is_written_under_its_name(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_siglip_uneven"))
    path = check_round_trip(loaded, tmp_path / "ours", "hf-siglip")
    written = load_file(path / "model.safetensors")
    assert written.keys() == {f"vision_model.{name}" for name in reference("hf_siglip_uneven").weights}


def test_what_the_classifier_does_not_read_is_left_out_with_a_reason(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO"):
        vitral.load(folder(tmp_path, "hf_siglip_head"))
    assert "and 10 more: pools the patches in another way than the classifier does" in caplog.text


def test_images_are_as_large_as_whole_patches(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    published = {"size": {"height": 34, "width": 34}, "resample": 3, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    with caplog.at_level("INFO"):
        bundle = vitral.load(folder(tmp_path, "hf_siglip_uneven", processor=published)).bundle
    assert (bundle.model.image_size, bundle.preprocessing.image_size) == ((32, 32), (32, 32))
    assert "images of 32x32; the library ignores what its patches do not cover of 34x34" in caplog.text
