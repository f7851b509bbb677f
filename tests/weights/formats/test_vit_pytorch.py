"""vit-pytorch's ViT and SimpleViT, of several versions."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from tests.errors import raises
from tests.models.references import reference
from tests.weights.formats.files import (
    TOLERANCE,
    differences,
    fixture,
    layout,
    put,
    relative_errors,
    rewritten,
    unlike,
    vit,
    written_back,
)
from vitral.core.config import Size, parse_settings
from vitral.data.transforms.preprocessing import CENTERED
from vitral.models import Attention, MeanAllPool
from vitral.weights.formats.format import Format
from vitral.weights.formats.vit_pytorch import SimpleVit, VitPytorch, current_names, drop_batch_dim
from vitral.weights.load import load

HEADS = "mixer.heads=2"
WIDE = (HEADS, "stem.patch=6x8", "image_size=24x48")
TODAY: dict[str, tuple[Format, tuple[str, ...]]] = {
    "vit_pytorch": (VitPytorch(), WIDE),
    "vit_pytorch_mean": (VitPytorch(), WIDE),
    "simple_vit": (SimpleVit(), WIDE),
    "vit_pytorch_one_head": (VitPytorch(), ()),
}
BEFORE = {
    "vit_pytorch_1_6": (HEADS, "pool=mean_all"),
    "vit_pytorch_0_40": (HEADS, "pool=cls"),
    "simple_vit_0_40": (HEADS, "image_size=32"),
}


@pytest.mark.parametrize("name", TODAY)
def test_it_answers_as_vit_pytorch_does(tmp_path: Path, name: str) -> None:
    kind, hints = TODAY[name]
    folder, found = fixture(name, tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*hints]))
    assert max(differences(loaded.model, found.answers)) <= TOLERANCE
    written = rewritten(loaded, kind, tmp_path / "b")
    assert written.keys() == found.weights.keys()
    assert all(torch.equal(tensor, found.weights[key]) for key, tensor in written.items())


@pytest.mark.parametrize("name", BEFORE)
def test_it_answers_as_older_versions_do(tmp_path: Path, name: str) -> None:
    folder, found = fixture(name, tmp_path / "a")
    assert max(differences(load(folder, settings=parse_settings([*BEFORE[name]])).model, found.answers)) <= TOLERANCE


def test_another_pool_than_was_trained_answers_otherwise(tmp_path: Path) -> None:
    folder, found = fixture("vit_pytorch_1_6", tmp_path / "a")
    assert isinstance(vit(load(folder, settings=parse_settings([HEADS, "pool=mean_all"]))).pool, MeanAllPool)
    assert max(differences(load(folder, settings=parse_settings([HEADS, "pool=cls"])).model, found.answers)) > 0.1


@pytest.mark.parametrize(
    ("name", "hints", "wanted"),
    [
        ("vit_pytorch", (), ("mixer.heads=N",)),
        ("vit_pytorch_1_6", (HEADS,), ("pool=cls", "pool=mean_all")),
        ("vit_pytorch_1_6", (), ("mixer.heads=N", "pool=cls", "pool=mean_all")),
        ("simple_vit_0_40", (), ("mixer.heads=N", "image_size=HEIGHTxWIDTH")),
    ],
)
def test_all_that_a_file_does_not_tell_is_asked_for_at_once(
    tmp_path: Path, name: str, hints: tuple[str, ...], wanted: tuple[str, ...]
) -> None:
    folder, _ = fixture(name, tmp_path / "a")
    with raises("weights.missing_setting", *wanted, f"vitral convert {folder}") as caught:
        load(folder, settings=parse_settings([*hints]))
    assert ("mixer.heads=N" in str(caught.value)) == ("mixer.heads=N" in wanted)


def test_one_head_without_projection_is_told_by_the_file(tmp_path: Path) -> None:
    loaded = load(fixture("vit_pytorch_one_head", tmp_path / "a")[0])
    bundle, mixer = loaded.bundle, vit(loaded).mixer
    assert isinstance(mixer, Attention)
    assert (mixer.heads, mixer.project) == (1, False)
    assert bundle.preprocessing.normalize == CENTERED
    assert bundle.preprocessing.crop.kind == "resize"


def test_the_width_of_a_head_tells_their_number(tmp_path: Path) -> None:
    folder, found = fixture("vit_pytorch_0_40", tmp_path / "a")
    model = load(folder, settings={"mixer.head_width": 12, "pool": "cls"}).model
    assert max(differences(model, found.answers)) <= TOLERANCE


@pytest.mark.parametrize(
    ("pixels", "patch", "channels"), [(49, 7, 1), (768, 16, 3), (192, 8, 3), (196, None, None), (144 * 2, None, None)]
)
def test_a_patch_is_told_by_its_numbers_where_only_one_square_has_them(
    tmp_path: Path, pixels: int, patch: int | None, channels: int | None
) -> None:
    weights = reference("vit_pytorch_0_40").weights
    weights["to_patch_embedding.1.weight"] = torch.zeros(40, pixels)  # 196 are 14x14 of one channel, 7x7 of four
    folder = put(tmp_path / "a", weights)
    if patch is None:
        with raises("weights.missing_setting", "stem.patch=HEIGHTxWIDTH"):
            load(folder, settings=parse_settings([HEADS, "pool=cls"]))
        return
    model = vit(load(folder, settings=parse_settings([HEADS, "pool=cls"])))
    assert (model.stem.patch, model.channels) == (Size(patch, patch), channels)


def test_channels_tell_a_patch_that_may_be_of_two_kinds(tmp_path: Path) -> None:
    weights = reference("vit_pytorch_0_40").weights
    weights["to_patch_embedding.1.weight"] = torch.zeros(40, 196)
    model = vit(load(put(tmp_path / "a", weights), settings=parse_settings([HEADS, "pool=cls", "channels=4"])))
    assert (model.channels, model.image_size) == (4, Size(28, 28))


REPOSITORY: dict[str, tuple[Format, tuple[str, ...]]] = {
    "vit_pytorch": (VitPytorch(), (HEADS,)),
    "simple_vit_registers": (SimpleVit(), (HEADS, "image_size=20")),
    "simple_flash_vit": (SimpleVit(), (HEADS, "image_size=20")),
    "vit_patch_dropout": (VitPytorch(), (HEADS, "pool=cls")),
    "vit_pytorch_0_40_mean": (VitPytorch(), (HEADS, "pool=mean_all")),
    "vit_pytorch_0_9": (VitPytorch(), (HEADS, "pool=cls")),
    "vit_pytorch_0_6": (VitPytorch(), (HEADS, "pool=cls", f"mixer.scale={8**-0.5}")),
    "vit_pytorch_0_2": (VitPytorch(), (HEADS,)),
}


@pytest.mark.parametrize("name", REPOSITORY)
def test_every_version_answers_as_its_own_code_also_for_smaller_images(tmp_path: Path, name: str) -> None:
    kind, settings = REPOSITORY[name]
    folder, found = layout(name, tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*settings]))
    written = written_back(loaded, kind)
    own = drop_batch_dim(current_names(found.weights))
    assert written.keys() == own.keys()
    assert all(torch.equal(tensor, own[name]) for name, tensor in written.items())
    assert max(relative_errors(loaded.model, found.answers)) <= 1e-12


def test_positions_are_sliced_and_more_patches_than_positions_are_refused(tmp_path: Path) -> None:
    folder, found = layout("vit_pytorch", tmp_path / "a")
    model = load(folder, settings=parse_settings([HEADS])).model
    with raises("config.size_mismatch", "6x5", 25, "position.resampling=bilinear"):
        model(torch.zeros(1, 3, 24, 20))
    stretched = load(folder, settings=parse_settings([HEADS, "position.resampling=bilinear"])).model
    assert stretched(torch.zeros(1, 3, 24, 20)).shape == (1, 5)
    assert max(relative_errors(stretched, found.answers)) > 1e-3


def test_the_names_of_a_widely_read_copy_are_read(tmp_path: Path) -> None:
    found = reference("vit_pytorch_1_6")
    weights = {name.replace(".net.", ".ffnet."): tensor for name, tensor in found.weights.items()}
    model = load(put(tmp_path / "a", weights), settings=parse_settings([*BEFORE["vit_pytorch_1_6"]])).model
    assert max(differences(model, found.answers)) <= TOLERANCE


def test_the_scale_of_attention_is_asked_for_where_versions_differ(tmp_path: Path) -> None:
    folder, found = layout("vit_pytorch_0_6", tmp_path / "a")
    with raises("weights.missing_setting", "mixer.scale=0.35355339", "1/sqrt(d)"):
        load(folder, settings=parse_settings([HEADS, "pool=cls"]))
    other = load(folder, settings=parse_settings([HEADS, "pool=cls", "mixer.scale=1/sqrt(d)"])).model
    assert max(relative_errors(other, found.answers)) > 1e-4
    mixer = vit(load(layout("vit_pytorch_0_2", tmp_path / "b")[0], settings=parse_settings([HEADS]))).mixer
    assert isinstance(mixer, Attention)
    assert mixer.scale == 8**-0.5


def test_registers_are_written_too(tmp_path: Path) -> None:
    folder, found = layout("simple_vit_registers", tmp_path / "a")
    loaded = load(folder, settings=parse_settings([HEADS, "image_size=20"]))
    assert vit(loaded).tokens.registers == 3
    written = rewritten(loaded, SimpleVit(), tmp_path / "b")
    assert all(torch.equal(tensor, found.weights[name]) for name, tensor in written.items())


@pytest.mark.parametrize(
    ("setting", "code", "values"),
    [
        ("mixer.heads=5", "weights.bad_setting", (24, 5)),
        ("mixer.heads=0", "weights.bad_setting", ("mixer.heads", "'0'")),
        ("stem.patch=7", "weights.bad_setting", (144, "7x7")),
        ("channels=2", "weights.shape_mismatch", ("to_patch_embedding",)),
    ],
)
def test_wrong_settings_are_refused(tmp_path: Path, setting: str, code: str, values: tuple[object, ...]) -> None:
    folder, _ = fixture("vit_pytorch", tmp_path / "a")
    with raises(code, *values):
        load(folder, settings=parse_settings([*WIDE, setting]))


@pytest.mark.parametrize("name", ["to_patch_embedding.1.bias", "transformer.layers.1.1.net.4.weight", "mlp_head.bias"])
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(tmp_path: Path, name: str) -> None:
    weights = reference("vit_pytorch").weights
    odd = weights | {name: weights[name][:-1]}
    with raises("weights.shape_mismatch", name):
        load(put(tmp_path / "a", odd), settings=parse_settings([*WIDE]))
    del weights[name]
    with raises("weights.missing_tensor", name):
        load(put(tmp_path / "b", weights), settings=parse_settings([*WIDE]))


def test_other_models_of_the_library_are_not_taken_for_these(tmp_path: Path) -> None:
    weights = reference("vit_pytorch").weights | {"transformer.layers.0.0.reattn_weights": torch.ones(2, 2)}  # DeepViT
    with raises("weights.unexpected_tensor", "reattn_weights"):
        load(put(tmp_path / "a", weights), settings=parse_settings([*WIDE]))


BASE = ("stem.norm=both", "mixer.qkv_bias=false", "eps=1e-5")
SIMPLE = (*BASE, "position=sincos2d", "tokens.cls=false", "pool=mean")


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ("stem.norm=none", "stem.norm"),
        ("tokens.registers=1", "tokens.registers"),
        ("block.scale=layer_scale", "block.scale"),
        ("mixer.qkv_bias=true", "mixer.qkv_bias"),
        ("mlp=swiglu", "mlp"),
        ("eps=1e-6", "eps"),
    ],
)
def test_a_part_without_counterpart_is_named(settings: str, field: str) -> None:
    assert not unlike(VitPytorch(), *BASE)
    assert not unlike(SimpleVit(), *SIMPLE)
    assert unlike(VitPytorch(), *BASE, settings) == [field]
    assert unlike(SimpleVit(), *SIMPLE, settings) == ([field] if field != "tokens.registers" else [])


def test_what_one_of_the_two_models_has_the_other_lacks() -> None:
    assert unlike(VitPytorch(), *SIMPLE) == ["position"]
    assert unlike(SimpleVit(), *BASE) == ["position", "pool"]
    assert unlike(VitPytorch(), *BASE, "pool=mean") == ["pool"]
    assert unlike(VitPytorch(), *BASE, "head=tanh") == ["head"]
    assert unlike(SimpleVit(), *SIMPLE, "head=none") == ["head"]
    assert unlike(VitPytorch(), *BASE, "mixer.heads=1") == ["mixer.project"]
    assert not unlike(SimpleVit(), *SIMPLE, "mixer.heads=1")


def test_simple_vit_holds_no_bias_of_the_output(tmp_path: Path) -> None:
    folder, _ = fixture("simple_vit", tmp_path / "a")
    loaded = load(folder, settings=parse_settings([*WIDE]))
    loaded.model.get_parameter("blocks.1.mixer.project.bias").data[3] = 0.5
    with raises("weights.no_counterpart", "blocks.1.mixer.project.bias"):
        rewritten(loaded, SimpleVit(), tmp_path / "b")


@pytest.mark.parametrize("frames", [2, 4])
def test_a_model_of_videos_with_the_same_names_is_named(tmp_path: Path, frames: int) -> None:
    """`vit_3d` has the tensors of older versions, and patches of several frames; 4 of them make a square again."""
    tensors = dict(reference("vit_pytorch_1_6").weights)
    width = len(tensors["to_patch_embedding.2.weight"])
    pixels = 3 * 8 * 8 * frames
    tensors |= {f"to_patch_embedding.1.{part}": torch.ones(pixels) for part in ("weight", "bias")}
    tensors["to_patch_embedding.2.weight"] = torch.ones(width, pixels)
    file = tmp_path / "vit_3d.safetensors"
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, file)
    with raises("weights.missing_setting", "vit_3d", "videos") as caught:
        load(file, settings={"mixer.heads": 2})
    assert (f"{pixels} values" in str(caught.value)) is (frames == 2)
