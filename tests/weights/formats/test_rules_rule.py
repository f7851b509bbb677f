"""Rules in both directions."""

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from vitral.core.config import Size
from vitral.models.embed import cut_patches
from vitral.weights.formats.rules import (
    Rule,
    concatenated,
    constant,
    expected_shapes,
    export_tensors,
    import_tensors,
    mapped,
    patch_kernel,
    same,
    split,
)

OWN = {
    "a": torch.arange(6.0).view(6, 1).expand(6, 4).clone(),
    "b": torch.randn(3, 4),
    "c": torch.randn(2, 4),
    "stem": torch.randn(5, 3 * 2 * 4),
    "zero": torch.zeros(4),
}
RULES: dict[str, list[Rule]] = {
    "same": [same("a", "x")],
    "mapped": [mapped("a", "x", lambda found: found.mT, lambda own: own.mT)],
    "concatenated": [concatenated("a", ("q", "k", "v"))],
    "split": [split(("b", "c"), "x", (3, 2))],
    "patch_kernel": [patch_kernel("stem", "conv", Size(2, 4))],
    "constant": [constant("zero", [4], 0.0, "a bias")],
}


def back(rules: list[Rule], found: dict[str, Tensor]) -> dict[str, Tensor]:
    own = {name: OWN[name] for rule in rules for name in rule.ours}
    return import_tensors(rules, own, found, "a/file", "give another")


@pytest.mark.parametrize("name", RULES)
def test_what_is_written_is_read_as_it_was(name: str) -> None:
    rules = RULES[name]
    theirs = export_tensors(rules, OWN)
    again = back(rules, theirs)
    assert {each for rule in rules for each in rule.theirs} == theirs.keys()
    assert all(torch.equal(again[each], OWN[each]) for rule in rules for each in rule.ours)
    assert all(tensor.is_contiguous() for tensor in theirs.values())


@pytest.mark.parametrize("name", RULES)
def test_shapes_follow_from_a_skeleton(name: str) -> None:
    bones = {each: tensor.to("meta") for each, tensor in OWN.items()}
    expected = {each: tensor.shape for each, tensor in export_tensors(RULES[name], OWN).items()}
    assert expected_shapes(RULES[name], bones) == expected


def test_a_kernel_does_what_the_map_of_patches_does() -> None:
    images = torch.randn(2, 3, 4, 8)
    conv = export_tensors(RULES["patch_kernel"], OWN)["conv"]
    assert conv.shape == (5, 3, 2, 4)
    theirs = torch.nn.functional.conv2d(images, conv, stride=(2, 4)).flatten(2).mT
    assert torch.allclose(cut_patches(images, Size(2, 4)) @ OWN["stem"].mT, theirs, atol=1e-5)


def test_stacked_maps_stand_in_their_order() -> None:
    theirs = export_tensors(RULES["concatenated"], OWN)
    assert [float(theirs[name][0, 0]) for name in "qkv"] == [0.0, 2.0, 4.0]


def test_what_has_no_place_must_be_what_it_always_is() -> None:
    with raises("weights.no_counterpart", "zero"):
        export_tensors(RULES["constant"], OWN | {"zero": torch.tensor([0.0, 0.0, 1.0, 0.0])})


def test_all_that_is_wrong_is_listed_by_their_names() -> None:
    rules = [same("a", "x"), same("b", "y"), same("c", "z")]
    found = {"x": torch.zeros(4, 6), "y": torch.zeros(3, 4, dtype=torch.int64), "more": torch.zeros(1)}
    with raises("weights.missing_tensor", "a/file", "z ", "more ", "x ", "(4, 6)", "(6, 4)", "y ", "int64"):
        back(rules, found)


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("weights.missing_tensor", {}),
        ("weights.unexpected_tensor", {"x": torch.zeros(6, 4), "more": torch.zeros(1)}),
        ("weights.shape_mismatch", {"x": torch.zeros(4, 6)}),
        ("weights.wrong_type", {"x": torch.zeros(6, 4, dtype=torch.int64)}),
    ],
)
def test_each_fault_has_its_code(code: str, found: dict[str, Tensor]) -> None:
    with raises(code, "a/file"):
        back([same("a", "x")], found)
