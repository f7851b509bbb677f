"""Where every weight starts: the constants of Google's code, measured on fresh models."""

import math
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.models.variants import VARIANTS, small
from vitral.core.config import Size, union_members
from vitral.models import (
    Attention,
    AttentionPool,
    BigVision,
    Hybrid,
    Learned2d,
    LinearHead,
    Mlp,
    Normal,
    Palette,
    Patches,
    Relative2d,
    Resnet,
    SwiGlu,
    TanhHead,
    TokenMlp,
    Tokens,
    Vit,
    Zeros,
)
from vitral.models.init import BaseInit, DepthScaled, ImageGpt, InitConfig, initialize, lecun_normal_
from vitral.models.resnet import Bottleneck

SCHEMES = pytest.mark.parametrize("scheme", union_members(InitConfig))


def large(**fields: Any) -> nn.Module:
    """One layer, wide enough for its statistics to be sure."""
    base: dict[str, Any] = {
        "image_size": Size(64, 96),
        "width": 192,
        "depth": 1,
        "stem": Patches(patch=Size(8, 8)),
        "mixer": Attention(heads=4, head_width=24),
        "mlp": Mlp(ratio=3),
        "head": TanhHead(num_classes=50, bias=-10.0, hidden=128),
        "tokens": Tokens(registers=4),
    }
    return Vit(**(base | fields)).build()


def spread(model: nn.Module, name: str) -> Tensor:
    """A parameter's values, once it is sure that their mean is nought."""
    values = model.get_parameter(name).detach().double().flatten()
    assert values.mean().abs() < 5 * values.std() / values.numel() ** 0.5 + 1e-12
    return values


def class_token(model: nn.Module) -> Tensor:
    return model.get_parameter("prefix.tokens")[0].detach()


def assert_uniform(values: Tensor, bound: float) -> None:
    """Spread evenly from -bound to bound."""
    assert values.abs().max() <= bound * (1 + 1e-6)
    assert float(values.abs().max()) == pytest.approx(bound, rel=0.01)
    assert float(values.std()) == pytest.approx(bound / math.sqrt(3), rel=0.03)


def assert_normal(values: Tensor, deviation: float) -> None:
    """As many beyond one and two deviations as a bell has."""
    assert float(values.std()) == pytest.approx(deviation, rel=0.03)
    for times, share in ((1, 0.3173), (2, 0.0455)):
        assert float((values.abs() > times * deviation).double().mean()) == pytest.approx(share, abs=0.02)


def assert_constant(model: nn.Module, name: str, value: float) -> None:
    assert (model.get_parameter(name) == value).all()


@pytest.mark.sampled(6)
@SCHEMES
@pytest.mark.parametrize("name", VARIANTS)
def test_no_parameter_is_forgotten(name: str, scheme: type[BaseInit]) -> None:
    model = VARIANTS[name].build_empty("cpu")
    with torch.no_grad():
        for weight in model.parameters():
            weight.fill_(math.nan)
    initialize(model, scheme())
    assert [name for name, weight in model.named_parameters() if not weight.isfinite().all()] == []


@SCHEMES
def test_a_seed_decides_the_model(scheme: type[BaseInit]) -> None:
    config = small(init=scheme())
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(config.build().state_dict())
    assert all(models[0][name].equal(models[1][name]) for name in models[0])
    assert not all(models[0][name].equal(models[2][name]) for name in models[0])


@SCHEMES
def test_norms_start_as_nothing_but_norms(scheme: type[BaseInit]) -> None:
    model = small(init=scheme(), mixer=Attention(heads=2, qk_norm=True)).build()
    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    assert len(norms) == 2 * 4 + 1
    assert all(norm.weight.eq(1).all() and norm.bias.eq(0).all() for norm in norms)


def test_query_key_and_value_are_each_drawn_as_the_matrix_they_are() -> None:
    """Stacked, the fan-out would be three times theirs and the bound a third smaller."""
    model = large()
    stacked = model.get_parameter("blocks.0.mixer.heads.qkv.weight").detach().double()  # (3 * 96, 192)
    for matrix in stacked.split(96):
        assert_uniform(matrix, math.sqrt(6 / (192 + 96)))
    assert_uniform(spread(model, "blocks.0.mixer.project.weight"), math.sqrt(6 / (192 + 96)))
    assert_constant(model, "blocks.0.mixer.heads.qkv.bias", 0)
    assert_constant(model, "blocks.0.mixer.project.bias", 0)


def test_the_mlp_is_xavier_uniform_with_biases_of_a_millionth() -> None:
    model = large()
    for name in ("expand", "contract"):
        assert_uniform(spread(model, f"blocks.0.mlp.{name}.weight"), math.sqrt(6 / (192 + 576)))
    biases = [spread(large(), f"blocks.0.mlp.{name}.bias") for name in ("expand", "contract") for _ in range(4)]
    assert_normal(torch.cat(biases), 1e-6)


def test_gate_and_value_are_each_drawn_as_the_matrix_they_are() -> None:
    model = large(mlp=SwiGlu(ratio=2))
    for matrix in model.get_parameter("blocks.0.mlp.expand.weight").detach().double().chunk(2):
        assert_uniform(matrix, math.sqrt(6 / (192 + 384)))


def test_the_mlp_across_tokens_starts_like_the_other() -> None:
    model = large(mixer=TokenMlp(hidden=256), tokens=Tokens())
    for name in ("expand", "contract"):
        assert_uniform(spread(model, f"blocks.0.mixer.{name}.weight"), math.sqrt(6 / (97 + 256)))


def test_maps_that_flax_leaves_alone_are_truncated_normals_of_the_fan_in() -> None:
    model = large()
    for name, inputs in (("stem.project", 192), ("head.hidden", 192)):
        values, deviation = spread(model, f"{name}.weight"), inputs**-0.5
        assert float(values.std()) == pytest.approx(deviation, rel=0.02)
        assert values.abs().max() <= 2 * deviation / 0.8796
        assert_constant(model, f"{name}.bias", 0)


def test_lecun_normal_has_the_deviation_of_its_fan_in_after_truncation() -> None:
    for shape in ((64, 3, 7, 7), (500, 100)):
        weight = lecun_normal_(torch.empty(shape)).double()
        deviation = math.prod(shape[1:]) ** -0.5
        assert float(weight.std()) == pytest.approx(deviation, rel=0.02)
        assert float(weight.abs().max()) == pytest.approx(2 * deviation / 0.87962566, rel=0.01)


def test_positions_tokens_and_head_start_as_in_googles_code() -> None:
    model = large()
    assert_normal(spread(model, "position.table"), 0.02)
    assert not class_token(model).any()
    assert_constant(model, "head.classifier.linear.weight", 0)
    assert_constant(model, "head.classifier.linear.bias", -10)


@pytest.mark.parametrize(
    ("position", "names"),
    [
        (Learned2d(where="layers"), ("position.x", "position.y")),
        (Relative2d(), ("blocks.0.mixer.heads.relation.table",)),
    ],
)
def test_other_learned_places_start_small_too(position: object, names: tuple[str, ...]) -> None:
    model = large(position=position)
    for name in names:
        assert_normal(spread(model, name), 0.02)


def test_the_pooling_query_is_xavier_uniform_and_its_maps_are_too() -> None:
    model = large(pool=AttentionPool(heads=4))
    query, bound = spread(model, "pool.query"), math.sqrt(6 / (1 + 192))
    assert query.abs().max() <= bound
    assert float(query.std()) == pytest.approx(bound / math.sqrt(3), rel=0.2)  # of no more than 192 numbers
    for name in ("pool.q", "pool.project"):
        assert_uniform(spread(model, f"{name}.weight"), math.sqrt(6 / (192 + 192)))
    for matrix in model.get_parameter("pool.kv.weight").detach().double().split(192):
        assert_uniform(matrix, math.sqrt(6 / (192 + 192)))


def test_big_vision_starts_positions_at_the_scale_of_the_tokens() -> None:
    model = large(init=BigVision())
    assert_normal(spread(model, "position.table"), 192**-0.5)
    assert_uniform(spread(model, "blocks.0.mixer.project.weight"), math.sqrt(6 / (192 + 96)))
    assert not class_token(model).any()


def test_zeros_start_tokens_and_positions_from_nothing_and_maps_small() -> None:
    model = large(init=Zeros())
    for name in ("position.table", "blocks.0.mlp.expand.bias", "head.classifier.linear.weight"):
        assert_constant(model, name, 0)
    assert not class_token(model).any()
    for name in ("stem.project", "blocks.0.mixer.heads.qkv", "blocks.0.mixer.project", "blocks.0.mlp.contract"):
        assert_normal(spread(model, f"{name}.weight"), 0.02)


def test_normal_starts_tokens_and_positions_at_one_and_maps_as_torch_does() -> None:
    model = large(init=Normal(), head=LinearHead(num_classes=200))
    assert_normal(spread(model, "position.table"), 1)
    assert float(class_token(model).std()) == pytest.approx(1, rel=0.2)  # of no more than 192 numbers
    maps = {"stem.project": 192, "blocks.0.mixer.heads.qkv": 192, "blocks.0.mlp.contract": 576, "head.linear": 192}
    for name, inputs in maps.items():
        assert_uniform(spread(model, f"{name}.weight"), inputs**-0.5)
        assert 0 < model.get_parameter(f"{name}.bias").abs().max() <= inputs**-0.5


@SCHEMES
@pytest.mark.parametrize("config", [Resnet(layers=(2, 1), root=32), small(stem=Hybrid(layers=(2, 1), root=32))])
def test_every_residual_unit_starts_as_its_shortcut(config: Resnet | Vit, scheme: type[BaseInit]) -> None:
    model = config.build_empty("cpu")
    initialize(model, scheme())
    units = [part for part in model.modules() if isinstance(part, Bottleneck)]
    last = [unit.get_submodule("expand.1") for unit in units]
    norms = [part for part in model.modules() if isinstance(part, nn.GroupNorm)]
    assert len(units) == 3
    assert all((norm.weight == (0 if norm in last else 1)).all() and not norm.bias.any() for norm in norms)


@pytest.mark.parametrize("kind", union_members(InitConfig))
def test_registers_start_different_from_each_other(kind: type[BaseInit]) -> None:
    registers = small(tokens=Tokens(registers=3), init=kind()).build().get_parameter("prefix.tokens")[1:]
    assert not torch.equal(registers[0], registers[1])
    assert not torch.equal(registers[1], registers[2])


def test_depth_scaled_divides_what_a_layer_adds_by_the_square_root_of_twice_its_number() -> None:
    model = large(init=DepthScaled(), depth=3)
    for layer, name in product((0, 1, 2), ("mixer.project", "mlp.contract")):
        assert_normal(spread(model, f"blocks.{layer}.{name}.weight"), 0.02 / math.sqrt(2 * (layer + 1)))
        assert_normal(spread(model, f"blocks.{layer}.mlp.expand.weight"), 0.02)
    assert_normal(spread(model, "stem.project.weight"), 0.02)


def test_image_gpt_is_that_of_its_authors() -> None:
    model, width = large(init=ImageGpt(), depth=3, mixer=Attention(heads=4)), 192
    for layer in range(3):
        assert_normal(spread(model, f"blocks.{layer}.mixer.heads.qkv.weight"), width**-0.5)
        assert_normal(spread(model, f"blocks.{layer}.mixer.project.weight"), (3 * width) ** -0.5)
        for name in ("expand", "contract"):
            assert_normal(spread(model, f"blocks.{layer}.mlp.{name}.weight"), 0.02)
    assert_normal(spread(model, "position.table"), 0.01)
    palette = large(init=ImageGpt(), stem=Palette(colors=256), image_size=Size(4, 4))
    assert_normal(spread(palette, "stem.embed.weight"), 0.02)
