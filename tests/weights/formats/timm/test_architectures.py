"""The table of timm's Vision Transformers, against the tensors that timm's own models have."""

import hashlib
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.errors import raises
from tests.fixtures.make_references import FOLDER
from vitral.core.errors import ConfigError
from vitral.weights.formats.rules import expected_shapes
from vitral.weights.formats.timm.architectures import architectures, find_architecture
from vitral.weights.formats.timm.arguments import Arguments
from vitral.weights.formats.timm.resolve import MODELS
from vitral.weights.formats.timm.signature import tensor_signature
from vitral.weights.formats.timm.vit import TimmModel

TENSORS: dict[str, Any] = json.loads((FOLDER / "timm_tensors.json").read_text())
# Names that have no counterpart in ours, with the argument that is the reason.
REFUSED = {
    "naflexvit_base_patch16_par_gap": "pos_embed_ar_preserving",
    "naflexvit_base_patch16_parfac_gap": "pos_embed_ar_preserving",
    "vit_base_mci_224": "embed_layer",
    "vit_base_resnet26d_224": "embed_layer",
    "vit_base_resnet50d_224": "embed_layer",
    "vit_small_resnet26d_224": "embed_layer",
    "vit_small_resnet50d_s16_224": "embed_layer",
    "vit_dlittle_patch16_reg1_gap_256": "attn_layer",
    "vit_dwee_patch16_reg1_gap_256": "attn_layer",
    "vit_dpwee_patch16_reg1_gap_256": "block_fn",
}


def shallow(name: str) -> TimmModel:
    """The model of a name with the depth of the recorded tensors."""
    arch, depth = architectures()[name], TENSORS["depth"]
    facts = arch.image_facts()
    arguments = {"num_classes": facts["num_classes"], **arch.arguments, "depth": depth}
    arguments |= {"img_size": facts["input_size"][1:]} if "img_size" not in arguments else {}
    if isinstance(arguments.get("num_kv_heads"), list):
        arguments["num_kv_heads"] = arguments["num_kv_heads"][:depth]
    return MODELS[arch.kind](Arguments(arguments))


def shapes(found: TimmModel) -> dict[str, list[int]]:
    own = found.model.build_empty().state_dict()
    rules = found.layout.rules(found.model, own)
    assert own.keys() == {name for rule in rules for name in rule.ours}
    return {name: list(shape) for name, shape in expected_shapes(rules, own).items()}


def test_the_table_has_the_names_of_one_version_of_timm() -> None:
    assert architectures().keys() == TENSORS["models"].keys()
    assert len(architectures()) == 280
    assert {arch.kind for arch in architectures().values()} == MODELS.keys()
    assert find_architecture("vit_base_patch16_224.augreg_in21k")[0].image_facts("augreg_in21k")["num_classes"] == 21843


def digests(names: list[str]) -> Iterator[tuple[str, str]]:
    for name in names:
        found = shapes(shallow(name))
        assert tensor_signature(found) == architectures()[name].signature, name
        yield name, hashlib.sha256(json.dumps(sorted(found.items())).encode()).hexdigest()[:16]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("part", range(4))
def test_every_architecture_has_the_tensors_that_timm_gives_it(part: int) -> None:
    names = [name for name in architectures() if name not in REFUSED][part::4]
    assert dict(digests(names)) == {name: TENSORS["models"][name] for name in names}


@pytest.mark.parametrize("name", REFUSED)
def test_what_ours_cannot_hold_is_refused_with_the_reason(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        shallow(name)
    assert (caught.value.code, caught.value.where) == ("config.unsupported", f"model_args.{REFUSED[name]}")


def test_an_unknown_name_is_refused_with_a_suggestion() -> None:
    with raises("config.unknown_name", "vit_base_patch16_225", "vit_base_patch16_224"):
        find_architecture("vit_base_patch16_225")
    with raises("config.unknown_name", "augreg_in22k", "augreg_in21k"):
        find_architecture("vit_base_patch16_224")[0].image_facts("augreg_in22k")
