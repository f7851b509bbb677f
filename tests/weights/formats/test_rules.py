"""Tables of names, and the ResNet of a hybrid in them."""

import torch

from vitral.core.config import override
from vitral.models import Hybrid, Vit
from vitral.weights.formats.rules import (
    count_units,
    expected_shapes,
    fill_numbers,
    layer_names,
    match_names,
    named_rules,
    same,
)
from vitral.weights.formats.timm.infer import UNIT
from vitral.weights.formats.timm.layout import backbone_names

RESNET = backbone_names("patch_embed.backbone.stem.")
BODY = Hybrid(layers=(2, 1, 3), root=32)
FEW = ("image_size=32", "width=8", "depth=1", "mixer.heads=1", "head.num_classes=2")


def body() -> dict[str, torch.Tensor]:
    own = override(Vit(stem=BODY), FEW).build_empty().state_dict()
    return {name: tensor for name, tensor in own.items() if name.startswith("stem.body.")}


def test_every_tensor_of_the_body_has_a_rule_of_its_own() -> None:
    own = body()
    rules = named_rules(own, RESNET)
    theirs = [name for rule in rules for name in rule.theirs]
    assert [name for rule in rules for name in rule.ours] == list(own)
    assert len(set(theirs)) == len(theirs)
    assert expected_shapes(rules, own)["patch_embed.backbone.stem.conv.weight"] == torch.Size([32, 3, 7, 7])
    assert "patch_embed.backbone.stages.0.blocks.0.downsample.conv.weight" in theirs
    assert "patch_embed.backbone.stages.0.blocks.1.downsample.conv.weight" not in theirs


def test_the_units_of_each_stage_are_counted_by_their_names() -> None:
    names = [name for rule in named_rules(body(), RESNET) for name in rule.theirs]
    assert count_units(names, UNIT, 0) == (2, 1, 3)
    assert count_units(["other.0.1"], UNIT, 0) == ()


def test_a_table_names_tensors_modules_and_several_of_theirs() -> None:
    names = layer_names("layer.*.", {"norm": "ln", "qkv": ("q", "k"), "scale.factor": "gamma"}) | {"head": "fc"}
    own = ["blocks.3.norm.bias", "blocks.0.qkv.weight", "blocks.10.scale.factor", "head.weight", "unknown.weight"]
    assert dict(match_names(own, names)) == {
        "blocks.3.norm.bias": ("layer.3.ln.bias",),
        "blocks.0.qkv.weight": ("layer.0.q.weight", "layer.0.k.weight"),
        "blocks.10.scale.factor": ("layer.10.gamma",),
        "head.weight": ("fc.weight",),
    }


def test_a_module_has_the_tensors_that_the_model_has() -> None:
    assert [rule.theirs for rule in named_rules(["a.weight", "a.bias"], {"a": "x"})] == [("x.weight",), ("x.bias",)]
    assert [rule.theirs for rule in named_rules(["a.weight"], {"a": "x"})] == [("x.weight",)]


def test_a_special_rule_comes_before_the_table() -> None:
    rules = named_rules(["a.weight", "a.bias"], {"a": "x"}, [same("a.weight", "other")])
    assert [rule.theirs for rule in rules] == [("other",), ("x.bias",)]


def test_numbers_may_be_counted_from_one() -> None:
    assert fill_numbers("block+/unit+/conv", (0, 2)) == "block1/unit3/conv"
    assert fill_numbers("stages.*.blocks.*.conv", (0, 12)) == "stages.0.blocks.12.conv"
