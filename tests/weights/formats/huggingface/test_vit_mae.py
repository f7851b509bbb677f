"""ViT-MAE of transformers."""

from pathlib import Path

import pytest

import vitral
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_again, check_answers, folder
from vitral.weights.formats.huggingface.vit import HfMae


def test_the_encoder_answers_as_the_library_does(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        loaded = vitral.load(folder(tmp_path, "hf_mae"))
    check_answers(loaded, "hf_mae")
    left = sum(name.startswith("decoder.") for name in reference("hf_mae").weights)
    assert f"and {left - 1} more: reconstructs masked patches, in pre-training only" in caplog.text


def test_it_comes_back_bit_for_bit(tmp_path: Path) -> None:
    check_again(vitral.load(folder(tmp_path / "theirs", "hf_mae")), tmp_path / "ours", HfMae())


def test_the_decoder_tells_it_from_a_plain_vit(tmp_path: Path) -> None:
    loaded = vitral.load(alone(tmp_path, "hf_mae"), settings={"mixer.heads": 3})
    check_answers(loaded, "hf_mae")
    assert loaded.bundle.source.startswith("Hugging Face's ViT-MAE")
