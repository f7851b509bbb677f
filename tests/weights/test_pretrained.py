"""Published weights by short name. What is in the table was checked against the libraries' own models."""

import re
from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest

import vitral
from vitral.models.registry import model_config
from vitral.weights.hub import NAME
from vitral.weights.pretrained import PRETRAINED, PretrainedWeights, list_pretrained, published_weights

DOCS = Path(__file__).parents[2] / "docs/weights.md"
BYTES = 4  # of a float32
DINOV2: dict[str, object] = {"image_size": 518, "block.scale": "layer_scale", "head": "none"}
CLIP: dict[str, object] = {"tokens.norm": True, "stem.bias": False}
# How the Vision Transformer of a family differs from the architecture of its name, by the beginning of the short name.
FAMILIES: dict[str, dict[str, object]] = {
    r"dinov2-\w+-reg": DINOV2 | {"tokens.registers": 4},
    r"dinov2-": DINOV2,
    r"dinov3-": {"position": "rope2d", "block.scale": "layer_scale", "tokens.registers": 4, "head": "none"},
    r"augreg-\w+-in21k": {"head.num_classes": 21843},
    r"(augreg|deit)-|vit-b16$": {},
    r"(mae|dino)-|vit-b16-in21k": {"head": "none"},
    r"clip-\w+-in1k": CLIP,
    r"clip-": CLIP | {"head": "none"},
    r"siglip2?-": {"tokens.cls": False, "pool": "attention", "head": "none"},
}


@pytest.mark.parametrize("weights", PRETRAINED.values(), ids=list(PRETRAINED))
def test_parameters_are_those_of_the_architecture_that_the_table_names(weights: PretrainedWeights) -> None:
    settings = next(settings for start, settings in FAMILIES.items() if re.match(start, weights.name))
    model = model_config(weights.architecture, settings=settings).build_empty()
    assert weights.parameters == sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize("weights", PRETRAINED.values(), ids=list(PRETRAINED))
def test_a_download_holds_at_least_the_parameters(weights: PretrainedWeights) -> None:
    assert NAME.fullmatch(weights.hub_id)
    least = round(weights.parameters * BYTES / 1e6)
    with_text = weights.name.startswith(("clip-b32", "clip-l14", "siglip")) and not weights.name.endswith("in1k")
    assert weights.megabytes > 1.3 * least if with_text else least <= weights.megabytes <= least + 3


def test_short_names_are_unique_and_match_patterns() -> None:
    assert len(PRETRAINED) == len({weights.hub_id for weights in PRETRAINED.values()}) > 25
    assert [weights.name for weights in vitral.list_pretrained("dinov2-*")] == [
        name for name in PRETRAINED if name.startswith("dinov2-")
    ]
    assert tuple(list_pretrained()) == tuple(PRETRAINED.values())
    assert list_pretrained("nothing*") == ()


def test_records_are_frozen_and_shown_as_tables() -> None:
    found = list_pretrained("augreg-?16")
    with pytest.raises(FrozenInstanceError):
        found[0].name = "mine"  # type: ignore[misc]
    head, *lines = repr(found).splitlines()
    assert head.split()[:3] == ["name", "model", "parameters"]
    assert [line.split()[:2] for line in lines] == [
        ["augreg-s16", "S/16"],
        ["augreg-b16", "B/16"],
        ["augreg-l16", "L/16"],
    ]
    html = found._repr_html_()
    assert html.count("<tr>") == 4
    assert "hf:timm/vit_base_patch16_224.augreg_in21k_ft_in1k" in html


def test_the_weights_suggested_for_an_architecture_are_of_that_architecture() -> None:
    assert published_weights("B/16") == "augreg-b16"
    assert PRETRAINED[published_weights("S/14")].architecture == "S/14"
    assert published_weights("G/14") == ""


def test_the_docs_have_the_same_table() -> None:
    rows = [line for line in DOCS.read_text(encoding="utf-8").splitlines() if re.match(r"\| `[\w-]+` \| `\w+/", line)]
    cells = [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]
    assert cells == [[name, weights.hub_id, *weights.row()[1:]] for name, weights in PRETRAINED.items()]
