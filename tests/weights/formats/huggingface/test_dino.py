"""DINOv2 of transformers."""

from pathlib import Path

import pytest
from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.huggingface.folders import alone, check_answers, check_round_trip, folder, vit
from vitral.core.config import override
from vitral.models.position import Learned1d
from vitral.weights.formats.huggingface.dino import HfDinov2

FIXTURES = ("hf_dinov2", "hf_dinov2_registers", "hf_dinov2_registers_head", "hf_dinov2_swiglu")


@pytest.mark.parametrize("name", FIXTURES)
def test_it_answers_as_the_library_does(tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO"):
        loaded = vitral.load(folder(tmp_path, name))
    check_answers(loaded, name)
    assert "embeddings.mask_token: replaces masked patches, in pre-training only" in caplog.text


@pytest.mark.parametrize("name", FIXTURES)
def test_it_comes_back_bit_for_bit_and_by_the_same_names(tmp_path: Path, name: str) -> None:
    loaded = vitral.load(folder(tmp_path / "theirs", name))
    path = check_round_trip(loaded, tmp_path / "ours", "hf-dinov2")
    written = load_file(path / "model.safetensors")
    assert {key: tensor.shape for key, tensor in written.items()} == {
        key: tensor.shape for key, tensor in reference(name).weights.items()
    }


def inside(name: str) -> str:
    """What the library calls a tensor inside itself since version 5 (its conversion_mapping, `Dinov2Model`)."""
    for old, short in {"query": "q", "key": "k", "value": "v"}.items():
        name = name.replace(f"attention.attention.{old}", f"attention.{short}_proj")
    return name.replace("attention.output.dense", "attention.o_proj").replace("weights_out", "down_proj")


def test_the_names_inside_the_library_are_read_too(tmp_path: Path) -> None:
    new = {inside(name): tensor for name, tensor in reference("hf_dinov2_swiglu").weights.items()}
    for name in [name for name in new if "weights_in" in name]:
        gate, value = new.pop(name).chunk(2)
        new |= {name.replace("weights_in", "gate_proj"): gate, name.replace("weights_in", "up_proj"): value}
    check_answers(vitral.load(folder(tmp_path, "hf_dinov2_swiglu", tensors=new)), "hf_dinov2_swiglu")


def test_half_of_a_gated_map_is_refused(tmp_path: Path) -> None:
    weights = reference("hf_dinov2_swiglu").weights
    name = "encoder.layer.0.mlp.weights_in.weight"
    weights["encoder.layer.0.mlp.gate_proj.weight"] = weights.pop(name).chunk(2)[0].clone()
    with raises("weights.shape_mismatch", name, "(112, 40)", "(224, 40)"):
        vitral.load(folder(tmp_path, "hf_dinov2_swiglu", tensors=weights))


@pytest.mark.parametrize("name", FIXTURES[:3])
def test_without_a_config_names_and_shapes_tell(tmp_path: Path, name: str) -> None:
    check_answers(vitral.load(alone(tmp_path, name), settings={"mixer.heads": 3}), name)


def test_a_gated_mlp_without_a_config_asks_for_it(tmp_path: Path) -> None:
    with raises("weights.missing_setting", "config.json"):
        vitral.load(alone(tmp_path, "hf_dinov2_swiglu"), settings={"mixer.heads": 4})


def test_images_may_be_of_another_size_than_the_positions(tmp_path: Path) -> None:
    published = {
        "crop_size": {"height": 24, "width": 24},
        "do_center_crop": True,
        "image_processor_type": "BitImageProcessor",
        "resample": 3,
        "rescale_factor": 0.00392156862745098,
        "size": {"shortest_edge": 27},
    }
    bundle = vitral.load(folder(tmp_path, "hf_dinov2", processor=published)).bundle
    assert (bundle.model.image_size, bundle.preprocessing.image_size) == ((32, 32), (24, 24))


def test_a_hidden_width_that_is_no_multiple_has_no_counterpart(tmp_path: Path) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_dinov2")).bundle
    odd = override(bundle, ["model.mlp.ratio=2.5"])
    assert [fault.partition(":")[0] for fault in HfDinov2().unsupported(odd)] == ["mlp.ratio"]


def test_the_class_with_registers_resamples_without_aliasing_also_where_it_has_none(tmp_path: Path) -> None:
    for kind, resampling in (("dinov2", "bicubic"), ("dinov2_with_registers", "bicubic_antialias")):
        loaded = vitral.load(folder(tmp_path / kind, "hf_dinov2", model_type=kind, num_register_tokens=0))
        position = vit(loaded).position
        assert isinstance(position, Learned1d)
        assert position.resampling == resampling
