"""CLIP's vision tower of transformers."""

from pathlib import Path

import pytest
import torch

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.models.head import NoHead, ProjectionHead
from vitral.models.mlp import Mlp
from vitral.models.pool import MeanPool

FIXTURES = {"hf_clip": ("quick_gelu", 1e-5), "hf_clip_vision": ("gelu", 1e-4)}


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path, name))
    check_answers(loaded, name)
    model = vit(loaded)
    assert model.head == ProjectionHead(width=6)
    assert isinstance(model.mlp, Mlp)
    assert (model.mlp.activation, model.eps) == FIXTURES[name]


@pytest.mark.parametrize("name", FIXTURES)
def test_it_comes_back_bit_for_bit(tmp_path: Path, name: str) -> None:
    check_round_trip(vitral.load(folder(tmp_path / "theirs", name)), tmp_path / "ours", "hf-clip")


def test_what_is_not_of_the_tower_is_left_out_with_a_reason(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        vitral.load(folder(tmp_path, "hf_clip"))
    left = [line for line in caplog.messages if line.startswith("ignored")]
    assert [line.rpartition(": ")[2] for line in left] == [
        "scales the similarity of images and texts",
        "belongs to the text tower",
        "projects texts to the shared embedding",
    ]


def test_a_tower_without_its_name_is_read_too(tmp_path: Path) -> None:
    weights = reference("hf_clip_vision").weights
    bare = {name.removeprefix("vision_model."): tensor for name, tensor in weights.items()}
    check_answers(vitral.load(folder(tmp_path, "hf_clip_vision", tensors=bare)), "hf_clip_vision")


def test_the_numbers_of_positions_in_older_files_are_left_out(tmp_path: Path) -> None:
    weights = reference("hf_clip").weights
    weights["vision_model.embeddings.position_ids"] = torch.arange(17)[None]
    check_answers(vitral.load(folder(tmp_path, "hf_clip", tensors=weights)), "hf_clip")


def test_without_a_config_the_kind_of_gelu_is_not_guessed(tmp_path: Path) -> None:
    with raises("weights.bad_config", "hidden_act", "config.json"):
        vitral.load(alone(tmp_path, "hf_clip"), settings={"mixer.heads": 3})


def test_what_a_whole_model_leaves_out_is_the_librarys_default(tmp_path: Path) -> None:
    vision = {
        name: value for name, value in reference("hf_clip").config["vision_config"].items() if name[:6] != "hidden"
    }
    path = folder(tmp_path, "hf_clip", vision_config={**vision, "hidden_size": 36})
    check_answers(vitral.load(path), "hf_clip")


def test_a_wrong_head_count_is_named_within_its_part(tmp_path: Path) -> None:
    vision = reference("hf_clip").config["vision_config"] | {"num_attention_heads": 5}
    with raises("weights.bad_config", "config.json: vision_config.num_attention_heads", 36, 5):
        vitral.load(folder(tmp_path, "hf_clip", vision_config=vision))


def test_a_tower_without_its_projection_gives_the_class_token(tmp_path: Path) -> None:
    weights = reference("hf_clip_vision").weights
    del weights["visual_projection.weight"]
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_clip_vision", tensors=weights))
    assert loaded.bundle.model.head == NoHead()
    check_round_trip(loaded, tmp_path / "ours", "hf-clip")


def test_a_classifier_reads_the_mean_of_the_patches_before_the_last_norm(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", "hf_clip_head"))
    check_answers(loaded, "hf_clip_head")
    assert vit(loaded).pool == MeanPool(norm="none")
    check_round_trip(loaded, tmp_path / "ours", "hf-clip")
