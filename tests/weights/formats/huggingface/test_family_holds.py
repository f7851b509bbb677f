"""Which parts of a model the families of transformers cannot hold."""

from pathlib import Path

import pytest

import vitral
from tests.errors import raises
from tests.weights.formats.huggingface.folders import folder
from vitral.core.config import override
from vitral.weights.convert import select_format
from vitral.weights.formats.huggingface.vit import HfVit
from vitral.weights.formats.registry import FAMILIES

CHANGES = {
    "model.stem.norm=both": "stem.norm",
    "model.stem.bias=false": "stem.bias",
    "model.tokens.norm=true": "tokens.norm",
    "model.tokens.registers=2": "tokens.registers",
    "model.position=sincos2d": "position",
    "model.position.where=layers": "position.where",
    "model.position.cls=false": "position.cls",
    "model.block=post": "block",
    "model.block.scale=layer_scale": "block.scale",
    "model.mixer=axial": "mixer",
    "model.mixer.head_width=10": "mixer",
    "model.mixer.qk_norm=true": "mixer.qk_norm",
    "model.mlp=swiglu": "mlp",
    "model.pool=mean_all": "head",
    "model.head=tanh": "head",
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", CHANGES)
def test_a_part_that_the_library_does_not_have_is_named(tmp_path: Path, change: str) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_vit", num_hidden_layers=3)).bundle
    extra = ["model.depth=4"] if change.endswith("axial") else []
    if change.endswith("tanh"):
        extra.append("model.head.num_classes=5")
    found = [fault.partition(":")[0] for fault in HfVit().unsupported(override(bundle, [change, *extra]))]
    assert found == [CHANGES[change]]


def test_what_the_library_can_hold_has_no_gaps(tmp_path: Path) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_vit")).bundle
    for setting in (
        "model.mlp.activation=quick_gelu",
        "model.mixer.qkv_bias=false",
        "model.eps=0.001",
        "model.width=48",
    ):
        assert not list(HfVit().unsupported(override(bundle, [setting])))


def test_squares_alone_are_cut_out_of_pictures(tmp_path: Path) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_vit")).bundle
    wide = override(bundle, ["model.image_size=32x48", "preprocessing.image_size=32x48", "preprocessing.crop=center"])
    assert [fault.partition(":")[0] for fault in HfVit().unsupported(wide)] == ["preprocessing.crop"]


def test_a_table_for_squares_holds_no_rectangle(tmp_path: Path) -> None:
    bundle = vitral.load(folder(tmp_path, "hf_clip")).bundle
    wide = override(bundle, ["model.image_size=32x48"])
    clip = next(family for family in FAMILIES if family.name == "hf-clip")
    assert [fault.partition(":")[0] for fault in clip.unsupported(wide)] == ["image_size"]


def test_the_family_that_is_nearest_tells_what_it_lacks(tmp_path: Path) -> None:
    loaded = vitral.load(folder(tmp_path, "hf_vit"))
    odd = loaded._replace(bundle=override(loaded.bundle, ["model.mixer.qk_norm=true"]))
    with raises("weights.no_counterpart", "hf-vit", "mixer.qk_norm"):
        select_format(odd, "huggingface")
