"""The equations carry the model's own numbers."""

import re

import pytest

from tests.models.variants import VARIANTS, VITS, small
from vitral.explanation.walkthrough.equations import ellipsis_terms, equations
from vitral.models import Axial, Hybrid, Local, MeanAllPool, MeanPool, NoHead, SwiGlu, TanhHead, Vit, model_config
from vitral.models.attention import BaseAttention

EVERY_VIT = pytest.mark.parametrize("name", VITS)


def text(config: Vit) -> str:
    return "\n".join(equations(config))


def test_b_16_is_the_papers() -> None:
    assert equations(Vit()) == (
        "z_0 = [x_class; x_1 E; ...; x_196 E] + E_pos    (eq. 1)",
        "      14x14 = 196 patches of 16x16 pixels, 768 numbers each, E: 768 x 768, z: 197 x 768",
        "      position: A learned embedding for each token: the paper's default.",
        "z'_l = MSA(LN(z_l-1)) + z_l-1, l = 1 ... 12    (eq. 2)",
        "      softmax(q k' / sqrt(64)) v in 12 heads of 64, 197 x 197 weights",
        "z_l = MLP(LN(z'_l)) + z'_l, l = 1 ... 12    (eq. 3)",
        "      768 -> GELU of 3072 -> 768",
        "y = LN(z_12), of the class token    (eq. 4)",
        "      linear to 1000 classes",
    )


@pytest.mark.sampled(4)
@EVERY_VIT
def test_the_first_equation_has_the_shapes_of_the_weights(name: str) -> None:
    config = VITS[name]
    first, shapes, _ = equations(config)[:3]
    weights = dict(config.build_empty().named_parameters())
    length = config.layout(config.image_size).length()
    assert f"z: {length} x {config.width}" in shapes
    if "stem.project.weight" in weights:
        width, numbers = weights["stem.project.weight"].flatten(1).shape  # a convolution has a kernel
        assert f", {numbers} numbers each, E: {numbers} x {width}" in shapes
    elif "stem.embed.weight" in weights:
        colors, width = weights["stem.embed.weight"].shape
        assert f"the nearest of {colors} colors, k(i) = argmin_k |x_i - p_k|^2, E: {colors} x {width}" in shapes
    else:
        assert "E:" not in shapes
    count = config.stem.grid(config.image_size).cells()
    looked_up = f"; E_k({count})]" if "stem.embed.weight" in weights else f"; x_{count}]"
    assert (f"; x_{count} E]" if "stem.project.weight" in weights else looked_up) in first
    assert ("x_class" in first) == config.tokens.cls
    assert (f"r_{config.tokens.registers};" in first) == (config.tokens.registers > 0)
    learned = any(name.startswith("position.") for name in weights)
    assert (" + E_pos" in first) == (learned or "sincos" in config.position.kind)


@pytest.mark.sampled(4)
@EVERY_VIT
def test_the_layers_have_the_widths_of_the_weights(name: str) -> None:
    config = VITS[name]
    weights = dict(config.build_empty().named_parameters())
    branches = config.block.kind == "multi_branch"
    hidden = weights[f"blocks.0.{'mlps.0.' * branches}mlp.contract.weight"].shape[1]
    assert re.search(rf"{config.width} -> \D*{hidden} -> {config.width}", text(config))
    assert f"l = 1 ... {config.depth}" in text(config)
    if isinstance(config.mixer, BaseAttention):
        inner = weights[f"blocks.0.{'mixers.0.' * branches}mixer.heads.qkv.weight"].shape[0] // 3
        width = inner // config.mixer.heads
        scaled = f"q k' / sqrt({width})" if config.mixer.scale == "1/sqrt(d)" else f"{config.mixer.scale} q k'"
        assert f"softmax({scaled}) v in {config.mixer.heads} heads of {width}" in text(config)
    else:
        assert "softmax" not in text(config)
        assert f"{type(config.mixer).__name__}(" in text(config)


@pytest.mark.sampled(4)
@EVERY_VIT
def test_the_norm_stands_where_the_model_has_it(name: str) -> None:
    config, found = VITS[name], text(VITS[name])
    before, mixer = config.block.kind == "pre", "MSA" if isinstance(config.mixer, BaseAttention) else "\\w+"
    assert bool(re.search(rf"= {mixer}\(LN\(z_l-1\)\) \+ z_l-1", found)) == before
    assert ("= LN(z_l-1 + " in found) == (config.block.kind == "post")
    assert bool(re.search(rf"= LN\({mixer}\(z_l-1\)\) \+ z_l-1", found)) == (config.block.kind == "residual_post")
    assert (f"y = LN(z_{config.depth})" in found) == ("norm.weight" in config.build_empty().state_dict())
    assert ("(eq. 2)" in found and "(eq. 3)" in found) == before  # the paper has no such equation


def test_the_answer_says_what_is_pooled_and_how_many_classes_there_are() -> None:
    assert "of the class token" in text(small())
    assert "mean of the patches" in text(small(pool=MeanPool()))
    assert "mean of all tokens" in text(small(pool=MeanAllPool()))
    assert "gathered by a learned query" in text(VITS["pool-attention"])
    assert equations(small())[-1].strip() == "linear to 4 classes"
    assert equations(small(head=TanhHead(num_classes=9)))[-1].strip() == "tanh layer, then linear to 9 classes"
    assert "no head" in equations(small(head=NoHead()))[-1]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("position-none", "bag of patches"),
        ("position-rope2d", "Rotary"),
        ("position-relative1d", "added to the logits"),
        ("position-sincos2d", "sine-cosine"),
        ("learned1d-layers", "Added before every layer."),
        ("learned2d-shared", "Added before every layer, with the same weights."),
    ],
)
def test_the_way_of_telling_places_is_told(name: str, words: str) -> None:
    assert words in equations(VITS[name])[2]


def test_a_long_row_is_shortened_and_a_short_one_is_not() -> None:
    assert ellipsis_terms("r_{}", 0) == []
    assert ellipsis_terms("r_{}", 1) == ["r_1"]
    assert ellipsis_terms("r_{}", 2) == ["r_1", "r_2"]
    assert ellipsis_terms("r_{}", 9) == ["r_1", "...", "r_9"]


def test_windows_are_told() -> None:
    assert "within rows and columns in turn" in text(small(mixer=Axial(heads=2)))
    assert "within 2x3 windows" in text(small(mixer=Local(heads=2, rows=2, columns=3)))
    assert "silu(gate) * value of 88" in text(small(mlp=SwiGlu()))


def test_a_hybrid_takes_its_patches_from_a_map() -> None:
    config = model_config("R50+B/16")
    assert isinstance(config, Vit)
    assert isinstance(config.stem, Hybrid)
    assert "14x14 = 196 patches of 1x1 cells of a ResNet's map, 1024 numbers each, E: 1024 x 768" in text(config)


def test_a_residual_network_has_three_lines_of_its_own() -> None:
    found = equations(model_config("R50x2"))
    assert len(found) == 3
    assert "3 + 4 + 6 + 3 bottleneck units" in found[0]
    assert found[1].endswith("7x7 places of 4096")
    assert found[2].strip() == "linear to 1000 classes"


@pytest.mark.parametrize("name", VARIANTS)
def test_no_line_is_empty_or_broken(name: str) -> None:
    for line in equations(VARIANTS[name]):
        assert line.strip()
        assert "\n" not in line
        assert "None" not in line
