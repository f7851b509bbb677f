"""The Vision Transformer as a whole: its shortcuts change nothing, and what does not fit is refused."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.errors import raises
from tests.models.variants import VITS, small
from vitral.core.config import Size, parse_settings
from vitral.models import (
    Attention,
    AttentionPool,
    Axial,
    ClassPool,
    Hybrid,
    Identity,
    Local,
    MeanPool,
    Patches,
    Pooling,
    Rope2d,
    SinCos2d,
    Tokens,
    VisionTransformer,
    Vit,
    model_config,
)
from vitral.weights.create import create_model

READ_BY_CLASS = {name: config for name, config in VITS.items() if isinstance(config.pool, ClassPool)}


def images(config: Vit) -> Tensor:
    return torch.rand(3, config.channels, *config.image_size) * 2 - 1


def answer_in_full(model: VisionTransformer, batch: Tensor) -> Tensor:
    """The answer with every token of every block computed."""
    layout = model.layout(batch)
    tokens = model.encode(model.embed(batch, layout), layout, layout.length())
    return model.head(model.pool(tokens, layout))


def gradient(weight: Tensor) -> Tensor:
    return torch.zeros_like(weight) if weight.grad is None else weight.grad.clone()


@pytest.mark.sampled(5)
@pytest.mark.parametrize("config", READ_BY_CLASS.values(), ids=READ_BY_CLASS.keys())
def test_computing_only_the_class_token_last_changes_neither_answer_nor_gradient(config: Vit) -> None:
    model = config.build().double()
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.2)
    batch = images(config).double()
    whole = answer_in_full(model, batch)
    whole.square().sum().backward()
    gradients = {name: gradient(weight) for name, weight in model.named_parameters()}
    model.zero_grad(set_to_none=True)
    short = model(batch)
    short.square().sum().backward()
    torch.testing.assert_close(short, whole, atol=1e-6, rtol=1e-6)
    for name, weight in model.named_parameters():
        torch.testing.assert_close(gradient(weight), gradients[name], atol=1e-6, rtol=1e-6)


def test_the_shortcut_agrees_in_single_precision_too() -> None:
    model = create_model("Ti/16", depth=3).eval()
    torch.nn.init.normal_(model.get_parameter("head.linear.weight"), std=0.02)
    batch = torch.rand(2, 3, 224, 224) * 2 - 1
    with torch.no_grad():
        assert isinstance(model, VisionTransformer)
        torch.testing.assert_close(model(batch), answer_in_full(model, batch), atol=1e-6, rtol=0)


def test_the_last_block_passes_on_the_class_token_alone() -> None:
    model, seen = small().build(), []
    model.blocks[-1].register_forward_hook(lambda _part, _given, tokens: seen.append(tokens.shape[1]))
    model(images(small()))
    model.forward_features(images(small()))
    assert seen == [1, 25]


def test_a_model_of_one_size_refuses_another() -> None:
    model = small(any_size=False).build()
    assert model(torch.zeros(1, 3, 32, 48)).shape == (1, 4)
    with raises("config.size_mismatch", "images", "32x48", "48x32", "any_size"):
        model(torch.zeros(1, 3, 48, 32))


def test_dropout_acts_in_training_alone() -> None:
    mixer = Attention(heads=2, attention_dropout=0.3, dropout=0.3)
    model = small(tokens=Tokens(dropout=0.3), mixer=mixer).build()
    torch.nn.init.normal_(model.get_parameter("head.linear.weight"))
    batch = images(small())
    assert not torch.equal(model(batch), model(batch))
    model.eval()
    assert torch.equal(model(batch), model(batch))


def test_the_same_seed_builds_the_same_model() -> None:
    torch.manual_seed(3)
    one = small().build().state_dict()
    torch.manual_seed(3)
    other = small().build().state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(
    ("fields", "code", "where", "values"),
    [
        ({"image_size": Size(30, 32)}, "config.indivisible", "image_size", ("30x32", "8x8", "32x32")),
        ({"mixer": Attention(heads=5)}, "config.indivisible", "mixer.heads", (32, 5, "1, 2, 4, 8")),
        (
            {"mixer": Attention(heads=3, head_width=6), "position": Rope2d()},
            "config.indivisible",
            "mixer.head_width",
            (6, 4),
        ),
        ({"width": 30, "position": SinCos2d()}, "config.indivisible", "width", (30, 4, 32)),
        ({"mixer": Local(heads=2, rows=3, columns=3)}, "config.indivisible", "mixer.rows", ("4x6", "3x3")),
        ({"mixer": Attention(heads=2, head_width=8, project=False)}, "config.conflict", "mixer.project", (32, 16)),
        ({"tokens": Tokens(cls=False)}, "config.conflict", "pool", ("tokens.cls=true", "pool=mean")),
        ({"mixer": Identity()}, "config.conflict", "mixer", ("identity",)),
        (
            {"mixer": Pooling(), "tokens": Tokens(cls=False), "pool": MeanPool(), "position": Rope2d()},
            "config.conflict",
            "position",
            ("rope2d", "pooling"),
        ),
        ({"pool": AttentionPool(heads=5)}, "config.indivisible", "pool.heads", (32, 5)),
        ({"stem": Hybrid(layers=(1,), root=32, project=False)}, "config.conflict", "stem.project", (128, 32)),
        ({"stem": Patches(patch=Size(8, 7))}, "config.indivisible", "image_size", ("32x48", "8x7", "32x49")),
    ],
)
def test_parts_that_do_not_fit_are_refused_when_the_config_is_made(
    fields: dict[str, Any], code: str, where: str, values: tuple[object, ...]
) -> None:
    with raises(code, *values) as caught:
        small(**fields)
    assert caught.value.where == where


def test_an_axial_model_works_on_any_grid_but_a_local_one_asks_for_its_windows() -> None:
    axial = small(mixer=Axial(heads=2)).build()
    assert axial(torch.zeros(1, 3, 40, 24)).shape == (1, 4)
    local = small(mixer=Local(heads=2, rows=2, columns=2)).build()
    with raises("config.indivisible", "mixer.rows", "5x3", "2x2"):
        local(torch.zeros(1, 3, 40, 24))


def test_dropout_comes_after_the_sum_with_positions_and_after_the_projection() -> None:
    """A dropped number is exactly nought, which a number that is added to or projected later never is."""
    config = small(tokens=Tokens(dropout=0.5), mixer=Attention(heads=2, dropout=0.5))
    model, batch = config.build(), images(config)
    layout = model.layout(batch)
    tokens = model.embed(batch, layout)
    assert 0.4 < float((tokens[:, 1:] == 0).float().mean()) < 0.6
    gathered = model.blocks[0].get_submodule("mixer")(torch.randn_like(tokens), layout, layout.length())
    assert 0.4 < float((gathered == 0).float().mean()) < 0.6


def test_axial_layers_come_in_pairs() -> None:
    with raises("config.indivisible", "depth", 3, 4):
        small(mixer=Axial(heads=2), depth=3)


@pytest.mark.parametrize(
    ("settings", "path", "expected"),
    [
        (("mixer=axial", "depth=24"), "mixer.heads", 16),
        (("head.num_classes=10", "head=tanh"), "head.num_classes", 10),
        (("block.drop_path_rate=0.1", "block=post"), "block.drop_path_rate", 0.1),
        (("mlp.dropout=0.1", "mlp=swiglu"), "mlp.dropout", 0.1),
        (("mlp=swiglu",), "mlp.ratio", 8 / 3),
    ],
)
def test_another_kind_keeps_what_both_kinds_share(settings: tuple[str, ...], path: str, expected: float) -> None:
    found: Any = model_config("L/16", settings=parse_settings([*settings]))
    for name in path.split("."):
        found = getattr(found, name)
    assert found == expected
