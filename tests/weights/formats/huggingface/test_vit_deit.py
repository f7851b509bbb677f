"""DeiT of transformers."""

from pathlib import Path

import pytest

import vitral
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.models.pool import ClassPool, DistilledPool

FIXTURES = {"hf_deit": ClassPool(), "hf_deit_distilled": DistilledPool()}


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path, name))
    check_answers(loaded, name)
    assert vit(loaded).pool == FIXTURES[name]
    assert loaded.bundle.classes == ("ant", "bee", "crab", "dog", "eel")


@pytest.mark.parametrize("name", FIXTURES)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    check_round_trip(vitral.load(folder(tmp_path / "theirs", name)), tmp_path / "ours", "hf-deit")


@pytest.mark.parametrize("name", FIXTURES)
def test_its_names_tell_it_from_a_plain_vit(tmp_path: Path, name: str) -> None:
    check_answers(vitral.load(alone(tmp_path, name), settings={"mixer.heads": 3}), name)


def test_published_files_squash_a_picture_and_ours_keep_its_shape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    published = {
        "crop_size": 224,
        "do_center_crop": True,
        "do_normalize": True,
        "do_resize": True,
        "feature_extractor_type": "DeiTFeatureExtractor",
        "image_mean": [0.485, 0.456, 0.406],
        "image_std": [0.229, 0.224, 0.225],
        "resample": 3,
        "size": 256,
    }
    with caplog.at_level("INFO"):
        needs = vitral.load(folder(tmp_path, "hf_deit", processor=published)).bundle.preprocessing
    assert needs.image_size == (224, 224)
    assert needs.crop.model_dump() == {"kind": "center", "fraction": 0.875, "filter": "bicubic"}
    assert "keeps its aspect ratio; the library would first squash it to 256x256" in caplog.text
