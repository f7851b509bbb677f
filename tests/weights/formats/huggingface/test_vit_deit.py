"""DeiT of transformers."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitral
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.core.config import Size
from vitral.models.pool import ClassPool, DistilledPool

FIXTURES = {"hf_deit": (ClassPool(), "linear"), "hf_deit_distilled": (DistilledPool(), "distilled")}


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path, name))
    check_answers(loaded, name)
    assert (vit(loaded).pool, vit(loaded).head.kind) == FIXTURES[name]
    assert loaded.bundle.classes == ("ant", "bee", "crab", "dog", "eel")


@pytest.mark.parametrize("name", FIXTURES)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    check_round_trip(vitral.load(folder(tmp_path / "theirs", name)), tmp_path / "ours", "hf-deit")


def test_both_heads_come_back_as_they_were(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_deit_distilled"))
    path = check_round_trip(loaded, tmp_path / "ours", "hf-deit")
    written, weights = load_file(path / "model.safetensors"), reference("hf_deit_distilled").weights
    assert written.keys() == weights.keys()
    assert all(torch.equal(written[name], weights[name]) for name in weights)


@pytest.mark.parametrize("name", FIXTURES)
def test_its_names_tell_it_from_a_plain_vit(tmp_path: Path, name: str) -> None:
    check_answers(vitral.load(alone(tmp_path, name), settings={"mixer.heads": 3}), name)


def test_a_picture_is_squashed_as_published_files_say(tmp_path: Path) -> None:
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
    needs = vitral.load(folder(tmp_path, "hf_deit", processor=published)).bundle.preprocessing
    assert needs.image_size == (224, 224)
    plan = needs.crop.plan(Size(300, 777), needs.image_size)
    assert (plan.resize_to, plan.window) == ((256, 256), (16, 16, 224, 224))
