"""Tokens, positions and DeiT's two heads.  N patches, D width."""

import pytest
import torch

from vitral.core.config import override
from vitral.models import DistilledPool, Vit
from vitral.models.vit import VisionTransformer
from vitral.weights.formats.rules import (
    TABLE,
    TOKENS,
    averaged_heads,
    expected_shapes,
    export_tensors,
    import_tensors,
    position_rules,
)

SMALL = ("image_size=8", "stem.patch=4", "width=6", "depth=1", "mixer.heads=1", "head.num_classes=3")
CASES = {
    "cls": ((), ["cls"], {"cls": (1, 1, 6), "table": (1, 5, 6)}),
    "cls without a row": (("position.cls=false",), ["cls"], {"cls": (1, 1, 6), "table": (1, 4, 6)}),
    "nothing but patches": (("tokens.cls=false", "pool=mean"), [], {"table": (1, 4, 6)}),
    "registers with rows": (("tokens.registers=2",), ["cls", "reg"], {"reg": (1, 2, 6), "table": (1, 7, 6)}),
    "registers without rows": (
        ("tokens.registers=2", "position.cls=false"), ["cls", "reg"], {"reg": (1, 2, 6), "table": (1, 4, 6)},
    ),
    "registers alone": (
        ("tokens.registers=2", "tokens.cls=false", "pool=mean"), ["cls", "reg"], {"reg": (1, 2, 6), "table": (1, 6, 6)},
    ),
    "no table": (("position=none",), ["cls"], {"cls": (1, 1, 6)}),
}  # fmt: skip


def model_of(*settings: str) -> VisionTransformer:
    model = override(Vit(), [*SMALL, *settings]).build()
    for weight in model.parameters():
        torch.nn.init.normal_(weight)
    return model


@pytest.mark.parametrize("name", CASES)
def test_tokens_and_positions_come_back_as_they_were(name: str) -> None:
    settings, tokens, expected = CASES[name]
    model = model_of(*settings)
    rules, own = position_rules(model.config, tokens, "table"), dict(model.state_dict())
    found = expected_shapes(rules, own)
    assert {each: tuple(found[each]) for each in expected} == expected
    again = import_tensors(rules, own, export_tensors(rules, own), "", "")
    assert all(torch.equal(again[each], own[each]) for each in (TOKENS, TABLE) if each in own)


def test_a_row_of_a_register_is_added_to_it() -> None:
    model = model_of("tokens.registers=2")
    own = dict(model.state_dict())
    theirs = {"cls": torch.randn(1, 1, 6), "reg": torch.randn(1, 2, 6), "table": torch.randn(1, 7, 6)}
    found = import_tensors(position_rules(model.config, ["cls", "reg"], "table"), own, theirs, "", "")
    model.load_weights(own | found)
    patches = torch.randn(1, 4, 6)
    expected = torch.cat([theirs["cls"], theirs["reg"], patches], dim=1) + theirs["table"]  # (1, 3 + N, D)
    given = model.embed_patches(patches, model.config.layout(model.config.image_size))
    assert torch.allclose(given, expected, atol=1e-6)


def test_the_mean_of_two_heads_is_one_head_on_both_tokens() -> None:
    one, two = torch.nn.Linear(6, 3), torch.nn.Linear(6, 3)
    theirs = {f"{name}.{part}": tensor for name, head in (("one", one), ("two", two))
              for part, tensor in head.state_dict().items()}  # fmt: skip
    own = {"head.weight": torch.empty(3, DistilledPool().out_width(6)), "head.bias": torch.empty(3)}
    rules = averaged_heads("head", ("one", "two"))
    found = import_tensors(rules, own, theirs, "", "")
    tokens = torch.randn(5, 2, 6)
    expected = (one(tokens[:, 0]) + two(tokens[:, 1])) / 2
    assert torch.allclose(tokens.flatten(1) @ found["head.weight"].mT + found["head.bias"], expected, atol=1e-6)
    again = import_tensors(rules, own, export_tensors(rules, found), "", "")
    assert all(torch.equal(again[name], found[name]) for name in found)
