"""What all families of transformers share: which files they claim, and what they make of a wrong config.json."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import vitral
from tests.errors import raises
from tests.models.references import FOLDER, reference
from tests.weights.formats.huggingface.folders import check_answers, folder
from vitral.core.config import override, parse_settings
from vitral.core.errors import WeightsError
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint
from vitral.weights.formats.huggingface.defaults import DEFAULTS
from vitral.weights.formats.registry import FAMILIES

OWNERS = {
    "hf_vit": "hf-vit",
    "hf_vit_pooler": "hf-vit",
    "hf_deit": "hf-deit",
    "hf_deit_distilled": "hf-deit",
    "hf_mae": "hf-mae",
    "hf_dinov2": "hf-dinov2",
    "hf_dinov2_registers": "hf-dinov2",
    "hf_dinov2_registers_head": "hf-dinov2",
    "hf_dinov2_swiglu": "hf-dinov2",
    "hf_dinov3": "hf-dinov3",
    "hf_clip": "hf-clip",
    "hf_clip_vision": "hf-clip",
    "hf_siglip": "hf-siglip",
    "hf_siglip_uneven": "hf-siglip",
    "hf_siglip_head": "hf-siglip",
    "hf_vit_relu": "hf-vit",
    "hf_msn": "hf-vit-msn",
    "hf_ijepa": "hf-ijepa",
    "hf_dpt": "hf-dpt",
    "hf_yolos": "hf-yolos",
    "hf_beit": "hf-beit",
    "hf_beit_shared": "hf-beit",
    "hf_data2vec": "hf-beit",
    "hf_dinov3_gated": "hf-dinov3",
    "hf_dinov3_biases": "hf-dinov3",
    "hf_clip_head": "hf-clip",
    "hf_metaclip": "hf-clip",
    "hf_blip": "hf-blip",
    "hf_siglip2": "hf-siglip2",
    "hf_aimv2": "hf-aimv2",
    "hf_aimv2_native": "hf-aimv2",
    "hf_tipsv2": "hf-tipsv2",
    "hf_internvl": "hf-internvl",
    "hf_internvl_qk_norm": "hf-internvl",
    "hf_janus": "hf-janus",
    "hf_mgp_str": "hf-mgp-str",
    "hf_sapiens2": "hf-sapiens2",
    "hf_pixio": "hf-pixio",
    "hf_mlcd": "hf-mlcd",
    "hf_vitpose_pose": "hf-vitpose",
    "hf_vitpose_backbone": "hf-vitpose",
}
OTHERS = [path.stem for path in sorted(FOLDER.glob("*.safetensors")) if not path.stem.startswith("hf_")]
ODD: tuple[Any, ...] = ([], {}, "x", "3", -1, 0, 0.5, 10**12, float("inf"), True, [1, 2, 3], {"a": 1})
CONFIG = Path("folder") / "model.safetensors"


def ckpt(name: str, config: dict[str, Any]) -> Checkpoint:
    return Checkpoint(CONFIG, reference(name).weights, config, {})


def claimed(found: Checkpoint) -> list[str]:
    return [family.name for family in FAMILIES if family.matches(found)]


def test_every_fixture_has_an_owner_here() -> None:
    assert OWNERS.keys() == {path.stem for path in FOLDER.glob("hf_*.safetensors")}
    assert {family.name for family in FAMILIES} == set(OWNERS.values())


@pytest.mark.parametrize("name", OWNERS)
def test_a_file_is_claimed_by_its_model_type_alone(name: str) -> None:
    assert claimed(ckpt(name, reference(name).config)) == [OWNERS[name]]


# By its names alone a file may be of two families, of another one, or of none.
NAMELESS = {
    "hf_vit_pooler": ["hf-vit", "hf-dpt"],
    "hf_dpt": ["hf-vit", "hf-dpt"],
    **{name: ["hf-vit", "hf-vit-msn"] for name in ("hf_vit", "hf_vit_relu", "hf_msn")},
    **{name: [] for name in ("hf_internvl", "hf_internvl_qk_norm")},
}


@pytest.mark.parametrize("name", OWNERS)
def test_a_file_without_a_config_is_claimed_by_its_names(name: str) -> None:
    assert claimed(ckpt(name, {})) == NAMELESS.get(name, [OWNERS[name]])


@pytest.mark.parametrize("name", OTHERS)
def test_files_of_other_libraries_are_not_claimed(name: str) -> None:
    tensors = load_file(FOLDER / f"{name}.safetensors")
    weights = {key.removeprefix("weights/"): tensor for key, tensor in tensors.items()}
    assert not claimed(Checkpoint(CONFIG, weights, {}, {}))


def test_an_unknown_model_type_is_refused(tmp_path: Path) -> None:
    with raises("weights.unknown_format", "swin"):
        vitral.load(folder(tmp_path, "hf_vit", model_type="swin"))


def test_another_format_than_config_json_tells_is_refused(tmp_path: Path) -> None:
    with raises("weights.bad_config", "config.json", "model_type", "deit", "'vit'"):
        vitral.load(folder(tmp_path, "hf_vit"), format="hf-deit")


@pytest.mark.parametrize(
    ("heads", "values"),
    [
        (5, ("hidden_size", 36, 5)),
        (10**9, ("hidden_size", 36, 10**9)),
        (0, (0,)),
        (3.0, (3.0,)),
        ("3", ("'3'",)),
    ],
)
def test_a_wrong_head_count_is_refused_by_its_field(tmp_path: Path, heads: object, values: tuple[object, ...]) -> None:
    with raises("weights.bad_config", "config.json: num_attention_heads", *values):
        vitral.load(folder(tmp_path, "hf_vit", num_attention_heads=heads))


@pytest.mark.parametrize("setting", ["mixer.heads=6", "image_size=64", "mlp.activation=gelu_tanh"])
def test_a_setting_that_contradicts_config_json_is_refused(tmp_path: Path, setting: str) -> None:
    with raises("weights.bad_setting", "config.json", setting):
        vitral.load(folder(tmp_path, "hf_vit"), settings=parse_settings([setting]))


def test_a_setting_that_says_the_same_as_config_json_is_welcome(tmp_path: Path) -> None:
    check_answers(vitral.load(folder(tmp_path, "hf_vit"), settings={"mixer.heads": 3}), "hf_vit")


def fields_of(config: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for name, value in config.items():
        yield (name,)
        if isinstance(value, dict) and name == "vision_config":
            yield from ((name, inner) for inner in value)


def changed(config: dict[str, Any], path: tuple[str, ...], value: object) -> dict[str, Any]:
    first, *rest = path
    return {**config, first: changed(config[first], tuple(rest), value) if rest else value}


def place(name: str, config: dict[str, Any]) -> str:
    """Where the fault lies that a config is refused for, or nothing."""
    family = next(each for each in FAMILIES if each.name == OWNERS[name])
    try:
        family.detect(ckpt(name, config))
    except WeightsError as error:
        return error.where
    return ""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["hf_vit", "hf_deit_distilled", "hf_dinov2_swiglu", "hf_dinov3", "hf_siglip"])
def test_whatever_a_field_holds_it_is_read_or_refused(name: str) -> None:
    config = reference(name).config
    assert place(name, config) == ""
    for path in fields_of(config):
        for odd in (*ODD, None):
            assert place(name, changed(config, path, odd)) in {"", "folder/config.json"}


@pytest.mark.parametrize("field", ["hidden_size", "num_hidden_layers", "patch_size", "layer_norm_eps", "hidden_act"])
def test_a_field_that_is_null_is_named(tmp_path: Path, field: str) -> None:
    path = folder(tmp_path, "hf_vit") / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {field: None}))
    with raises("weights.bad_config", f"config.json: {field} "):
        vitral.load(tmp_path)


@pytest.mark.parametrize(
    ("name", "field", "stated"),
    [
        ("hf_vit", "layer_norm_eps", "layer_norm_eps 1e-12"),
        ("hf_vit", "hidden_act", "hidden_act gelu"),
        ("hf_msn", "layer_norm_eps", "layer_norm_eps 1e-06"),
        ("hf_dinov3", "rope_theta", "rope_theta 100.0"),
        ("hf_beit", "layer_scale_init_value", "layer_scale_init_value 0.1"),
        ("hf_siglip2", "hidden_act", "hidden_act gelu_pytorch_tanh"),
    ],
)
def test_a_field_that_config_json_omits_has_the_librarys_default(
    tmp_path: Path, name: str, field: str, stated: str
) -> None:
    loaded = vitral.load(folder(tmp_path, name, **{field: None}))
    check_answers(loaded, name)
    assert any(stated in line for line in loaded.bundle.assumptions)


def test_the_defaults_are_those_of_the_library() -> None:
    found = json.loads((FOLDER / "huggingface_defaults.json").read_text())["defaults"]
    assert found == {kind: {**values} for kind, values in DEFAULTS.items()}
    towers = {kind for family in FAMILIES for kind in family.types} - DEFAULTS.keys()
    assert towers == {"clip", "metaclip_2", "altclip", "chinese_clip", "siglip", "siglip2", "aimv2", "vitpose"}


def test_a_default_that_the_tensors_contradict_is_refused(tmp_path: Path) -> None:
    with raises("weights.shape_mismatch", 36, 768):
        vitral.load(folder(tmp_path, "hf_vit", hidden_size=None))


def test_a_config_of_more_layers_than_the_file_has_names_what_is_missing(tmp_path: Path) -> None:
    with raises("weights.missing_tensor", "vit.encoder.layer.3."):
        vitral.load(folder(tmp_path, "hf_vit", num_hidden_layers=4))


def test_another_activation_is_refused(tmp_path: Path) -> None:
    with raises("weights.unsupported", "hidden_act", "gelu", "laplace"):
        vitral.load(folder(tmp_path, "hf_vit", hidden_act="laplace"))


def test_labels_that_do_not_number_the_classes_are_refused(tmp_path: Path) -> None:
    with raises("weights.bad_config", "id2label", 0, 4):
        vitral.load(folder(tmp_path, "hf_vit", id2label={"0": "a", "1": "b"}))


@pytest.mark.parametrize(
    ("problem", "activation"),
    [(None, "softmax"), ("single_label_classification", "softmax"), ("multi_label_classification", "sigmoid")],
)
def test_probabilities_are_those_of_the_librarys_pipeline_and_come_back(
    tmp_path: Path, problem: str | None, activation: str
) -> None:
    loaded = vitral.load(folder(tmp_path / "a", "hf_vit", problem_type=problem))
    assert (loaded.model.activation, loaded.bundle.activation) == (activation, activation)
    vitral.convert(tmp_path / "a", tmp_path / "b", to="huggingface")
    written = json.loads((tmp_path / "b" / "config.json").read_text())
    assert written.get("problem_type") == (problem if activation == "sigmoid" else None)
    assert vitral.load(tmp_path / "b").bundle.activation == activation


def test_one_logit_is_of_a_sigmoid_and_a_regression_is_no_class(tmp_path: Path) -> None:
    found = reference("hf_vit").weights
    one = {name: tensor[:1].clone() if name.startswith("classifier.") else tensor for name, tensor in found.items()}
    bundle = vitral.load(folder(tmp_path / "a", "hf_vit", tensors=one, id2label={"0": "cat"})).bundle
    assert (bundle.activation, bundle.classes) == ("sigmoid", ("cat",))
    assert any("sigmoid" in line for line in bundle.assumptions)
    values = vitral.load(folder(tmp_path / "b", "hf_vit", problem_type="regression")).bundle
    assert any("regression" in line for line in values.assumptions)
    with raises("weights.bad_config", "problem_type", "multi_label_classification"):
        vitral.load(folder(tmp_path / "c", "hf_vit", problem_type="ranking"))


def test_code_of_its_own_is_named_and_quantized_weights_are_refused(tmp_path: Path) -> None:
    code = {"AutoConfig": "my.Config", "AutoModelForImageClassification": "my.Model"}
    bundle = vitral.load(folder(tmp_path / "a", "hf_vit", auto_map=code)).bundle
    assert any("auto_map" in line for line in bundle.assumptions)
    with raises("weights.unsupported", "quantization_config", "bitsandbytes"):
        vitral.load(folder(tmp_path / "b", "hf_vit", quantization_config={"quant_method": "bitsandbytes"}))


def test_a_head_without_a_class_is_refused(tmp_path: Path) -> None:
    weights = reference("hf_vit").weights | {"classifier.weight": torch.zeros(0, 36), "classifier.bias": torch.zeros(0)}
    with raises("weights.shape_mismatch", "classifier."):
        vitral.load(folder(tmp_path, "hf_vit", tensors=weights))


def test_labels_are_read_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    labels = {str(label): f"class {label}" for label in (4, 2, 0, 1, 3)}
    bundle = vitral.load(folder(tmp_path, "hf_vit", id2label=labels)).bundle
    assert bundle.classes == ("class 0", "class 1", "class 2", "class 3", "class 4")


def test_a_rectangle_is_written_as_two_numbers(tmp_path: Path) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_vit")).bundle
    wide = override(bundle, ["model.image_size=32x48", "preprocessing.image_size=32x48"])
    assert isinstance(wide.model, Vit)
    assert FAMILIES[0].config_fields(wide.model)["image_size"] == [32, 48]
