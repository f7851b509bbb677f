"""The ResNet of a hybrid under timm's names."""

import torch

from vitral.core.config import override
from vitral.models import Hybrid, Vit
from vitral.weights.formats.rules import expected_shapes, resnet_layers, resnet_rules

BODY = Hybrid(layers=(2, 1, 3), root=32)
FEW = ("image_size=32", "width=8", "depth=1", "mixer.heads=1", "head.num_classes=2")


def test_every_tensor_of_the_body_has_a_rule_of_its_own() -> None:
    own = override(Vit(stem=BODY), FEW).build_empty().stem.get_submodule("body").state_dict()
    rules = resnet_rules(BODY, "body", "their.backbone")
    ours = [name for rule in rules for name in rule.ours]
    theirs = [name for rule in rules for name in rule.theirs]
    assert sorted(ours) == sorted(f"body.{name}" for name in own)
    assert len(set(theirs)) == len(theirs)
    found = expected_shapes(rules, {f"body.{name}": tensor for name, tensor in own.items()})
    assert found["their.backbone.stem.conv.weight"] == torch.Size([32, 3, 7, 7])
    assert "their.backbone.stages.0.blocks.0.downsample.conv.weight" in theirs
    assert "their.backbone.stages.0.blocks.1.downsample.conv.weight" not in theirs


def test_the_units_of_each_stage_are_counted_by_their_names() -> None:
    names = [name for rule in resnet_rules(BODY, "body", "their.backbone") for name in rule.theirs]
    assert resnet_layers(names, "their.backbone") == (2, 1, 3)
    assert resnet_layers(names, "anothers") == ()
