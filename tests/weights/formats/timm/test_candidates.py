"""Files that do not say which architecture of timm they are."""

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.weights.formats.files import put, vit
from tests.weights.formats.timm.test_architectures import REFUSED, shallow, shapes
from vitral.core.errors import WeightsError
from vitral.models import Attention, ClassPool
from vitral.models.vit import Vit
from vitral.weights.formats.format import Checkpoint, DetectedModel
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.timm.architectures import architectures
from vitral.weights.formats.timm.candidates import answering
from vitral.weights.load import load

NAMES = [name for name in architectures() if name not in REFUSED]


def bare(name: str, arch: str = "") -> Checkpoint:
    """The file of an architecture with few layers, by names and shapes alone."""
    tensors: dict[str, Tensor] = {
        key: torch.empty(shape, device="meta") for key, shape in shapes(shallow(name)).items()
    }
    return Checkpoint(Path("model.safetensors"), tensors, {}, {}, arch=arch)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_every_architecture_is_opened_by_its_name(part: int) -> None:
    for name in NAMES[part::4]:
        ckpt, expected = bare(name, name), shallow(name).model
        found = Timm().detect(ckpt)
        assert found.model == expected, name
        assert not found.unused


def detected(ckpt: Checkpoint) -> tuple[DetectedModel | None, list[str]]:
    """The model of a file, or the words of the refusal to choose one."""
    try:
        return Timm().detect(ckpt), []
    except WeightsError as error:
        return None, str(error).replace(",", " ").split() if error.code == "weights.ambiguous" else []


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_a_bare_file_is_read_as_what_it_is_or_refused_with_its_name(part: int) -> None:
    counts = Counter[str]()
    for name in NAMES[part::4]:
        ckpt, expected = bare(name), shallow(name).model
        found, fault = detected(ckpt)
        if found is None:
            assert name in fault, name
            counts["refused"] += 1
            continue
        assert isinstance(found.model, Vit)
        assert answering(ckpt, found.model) == answering(ckpt, expected), name
        assert found.assumptions, name
        counts["read"] += 1
    assert counts["read"] > 2 * counts["refused"]


def tiny(rows: int = 197, classes: int = 10) -> dict[str, Tensor]:
    """A single layer of vit_tiny_patch16_224."""
    shape = {
        "cls_token": (1, 1, 192), "pos_embed": (1, rows, 192), "patch_embed.proj.weight": (192, 3, 16, 16),
        "patch_embed.proj.bias": (192,), "norm.weight": (192,), "norm.bias": (192,), "head.weight": (classes, 192),
        "head.bias": (classes,),
    }  # fmt: skip
    layer = {
        "norm1.weight": (192,), "norm1.bias": (192,), "norm2.weight": (192,), "norm2.bias": (192,),
        "attn.qkv.weight": (576, 192), "attn.qkv.bias": (576,), "attn.proj.weight": (192, 192),
        "attn.proj.bias": (192,), "mlp.fc1.weight": (768, 192), "mlp.fc1.bias": (768,),
        "mlp.fc2.weight": (192, 768), "mlp.fc2.bias": (192,),
    }  # fmt: skip
    shape |= {f"blocks.0.{name}": each for name, each in layer.items()}
    return {name: torch.zeros(each) for name, each in shape.items()}


def test_one_candidate_needs_no_question_and_is_stated(tmp_path: Path) -> None:
    loaded = load(put(tmp_path / "a", tiny()))
    model = vit(loaded)
    assert isinstance(model.mixer, Attention)
    assert (model.mixer.heads, model.pool, str(model.image_size)) == (3, ClassPool(), "224x224")
    stated = " ".join(loaded.bundle.assumptions)
    assert "vit_tiny_patch16_224: 3 heads, gelu, eps 1e-06, pool=cls" in stated
    assert "1 layers" in stated


def test_a_setting_still_overrides_a_candidate(tmp_path: Path) -> None:
    mixer = vit(load(put(tmp_path / "a", tiny()), settings={"mixer.heads": 6})).mixer
    assert isinstance(mixer, Attention)
    assert mixer.heads == 6


def test_a_square_of_patches_is_stated_and_another_grid_is_asked_for(tmp_path: Path) -> None:
    folder = put(tmp_path / "a", tiny(rows=17))  # 4x4, or 2x8
    loaded = load(folder)
    assert any("4x4" in line for line in loaded.bundle.assumptions)
    wide = load(folder, settings={"image_size": "32x128"})
    assert str(vit(wide).image_size) == "32x128"
    assert not any("4x4" in line for line in wide.bundle.assumptions)
    with raises("weights.missing_setting", "image_size=HEIGHTxWIDTH", "vit_tiny_patch16_224"):
        load(put(tmp_path / "b", tiny(rows=16)))  # 3x5 and a class token; 4x4 if it had no row
    with raises("weights.bad_setting", "64x64"):
        load(put(tmp_path / "c", tiny(rows=16)), settings={"image_size": "64x64"})


def test_candidates_that_are_different_models_are_all_named() -> None:
    with raises("weights.ambiguous", "vit_base_patch16_clip_224", "vit_base_patch16_clip_quickgelu_224", "activation"):
        Timm().detect(bare("vit_base_patch16_clip_224"))
    given = bare("vit_base_patch16_clip_224")._replace(settings=("mlp.activation=quick_gelu",))
    assert "clip" in " ".join(Timm().detect(given).assumptions)


def test_a_norm_after_the_branch_is_not_read_as_one_before_it() -> None:
    for arch in ("", "vit_base_patch16_rpn_224"):
        model = Timm().detect(bare("vit_base_patch16_rpn_224", arch)).model
        assert isinstance(model, Vit)
        assert model.block.kind == "residual_post"


def test_a_file_that_two_libraries_may_have_written_is_refused_with_the_architectures(tmp_path: Path) -> None:
    weights = {name: tensor for name, tensor in tiny().items() if not name.startswith("head")}
    folder = put(tmp_path / "a", weights)
    with raises("weights.ambiguous", "timm", "dino", "vit_tiny_patch16_224", "deit_tiny_patch16_224"):
        load(folder)
    assert vit(load(folder, arch="vit_tiny_patch16_224")).pool == ClassPool()


def test_positions_without_a_row_for_the_class_token_are_not_taken_for_those_of_ibot(tmp_path: Path) -> None:
    shape = shapes(shallow("vit_small_patch16_rope_ape_224"))
    folder = put(tmp_path / "a", {name: torch.zeros(each) for name, each in shape.items() if "head" not in name})
    with raises("weights.ambiguous", "timm", "ibot", "vit_small_patch16_rope_ape_224"):
        load(folder)
