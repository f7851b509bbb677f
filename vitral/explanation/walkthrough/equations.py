"""The paper's equations with a model's own numbers in them."""

from vitral.core.config import Config
from vitral.models import Axial, Hybrid, Local, Resnet, Vit
from vitral.models.attention import BaseAttention, Causal
from vitral.models.embed import Palette, describe_stem, projected_values
from vitral.models.head import DistilledHead, NoHead, ProjectionHead, TanhHead
from vitral.models.mlp import SwiGlu
from vitral.models.pool import NormedPool
from vitral.models.position import BasePosition, Combined, Learned1d, Learned2d

POOLS = {
    "cls": "of the class token",
    "distilled": "of the class token and the first register, side by side",
    "mean": "mean of the patches",
    "cls_mean": "of the class token, beside the mean of the patches",
    "mean_all": "mean of all tokens",
    "prefix": "mean of the class token and the registers",
}


def equations(config: Vit | Resnet) -> tuple[str, ...]:
    """One line for each equation of section 3.1, as this model computes it."""
    if isinstance(config, Resnet):
        return resnet_equations(config)
    return (*embedding_equations(config), *layer_equations(config), *output_equations(config))


def resnet_equations(config: Resnet) -> tuple[str, ...]:
    grid, width = config.grid(config.image_size), config.out_channels()
    units = " + ".join(map(str, config.layers))
    return (
        f"x = relu(x + F(x)), {units} bottleneck units, GroupNorm of 32 groups, standardized kernels",
        f"y = mean of the last map, {grid} places of {width}",
        describe_head(config),
    )


def embedding_equations(config: Vit) -> tuple[str, ...]:
    grid, stem, layout = config.stem.grid(config.image_size), config.stem, config.layout(config.image_size)
    numbers, projected = projected_values(stem, config.channels), not isinstance(stem, Hybrid) or stem.project
    source = f"patches of {stem.patch} cells of a ResNet's map" if isinstance(stem, Hybrid) else describe_stem(stem)
    tokens = ["x_class"] * layout.cls + ellipsis_terms("r_{}", layout.registers)
    looked_up = isinstance(stem, Palette)
    tokens += ellipsis_terms("E_k({})" if looked_up else "x_{} E" if projected else "x_{}", grid.cells())
    added = config.position.applies_to == "tokens" or isinstance(config.position, Combined)
    plus = " + E_pos" if added else ""
    maps = f", E: {numbers} x {config.width}" if projected else ""
    first = ", then LN" if config.tokens.norm else ""
    pieces = f"{grid} = {grid.cells()} {source}, {numbers} numbers each{maps}"
    if isinstance(stem, Palette):
        pieces = f"{grid} = {grid.cells()} {source}, k(i) = argmin_k |x_i - p_k|^2, E: {stem.colors} x {config.width}"
    return (
        f"z_0 = [{'; '.join(tokens)}]{plus}{first}    (eq. 1)",
        f"      {pieces}, z: {layout.length()} x {config.width}",
        f"      position: {describe_position(config.position)}",
    )


def ellipsis_terms(form: str, count: int) -> list[str]:
    """The first and the last of `count` terms, with dots between them."""
    dots = ["..."] if count > 2 else []
    return [form.format(1), *dots, form.format(count)] if count > 1 else [form.format(1)] * count


def describe_position(position: BasePosition) -> str:
    """The first line of its docstring, and where a learned embedding is added."""
    text = first_line(position)
    if isinstance(position, Combined):
        text += f" Inside attention: {first_line(position.inside)}"
    if isinstance(position, Learned1d | Learned2d) and position.where != "stem":
        text += f" Added before every layer{', with the same weights' if position.where == 'shared' else ''}."
    return text


def first_line(kind: Config) -> str:
    return (type(kind).__doc__ or "").splitlines()[0]


BLOCKS = {  # by kind: what a layer computes
    "pre": ("z'_l = MSA(LN(z_l-1)) + z_l-1", "z_l = MLP(LN(z'_l)) + z'_l"),
    "post": ("z'_l = LN(z_l-1 + MSA(z_l-1))", "z_l = LN(z'_l + MLP(z'_l))"),
    "residual_post": ("z'_l = LN(MSA(z_l-1)) + z_l-1", "z_l = LN(MLP(z'_l)) + z'_l"),
    "parallel": ("n_l = LN(z_l-1), m_l = MSA(n_l)", "z_l = m_l + MLP(n_l) + z_l-1"),
    "multi_branch": ("z'_l = sum of MSA_i(LN_i(z_l-1)) + z_l-1", "z_l = sum of MLP_i(LN_i(z'_l)) + z'_l"),
}


def layer_equations(config: Vit) -> tuple[str, ...]:
    mixer = "MSA" if isinstance(config.mixer, BaseAttention) else type(config.mixer).__name__
    depth = config.depth
    first, second = BLOCKS.get(config.block.kind, BLOCKS["pre"])
    first = first.replace("MSA", mixer)

    def cite(number: int) -> str:  # the paper's equations are those of the norm that comes first
        return f"    (eq. {number})" if config.block.kind == "pre" else ""

    return (
        f"{first}, l = 1 ... {depth}{cite(2)}",
        f"      {describe_mixer(config)}",
        f"{second}, l = 1 ... {depth}{cite(3)}",
        f"      {describe_mlp(config)}",
    )


def describe_mixer(config: Vit) -> str:
    mixer, length = config.mixer, config.layout(config.image_size).length()
    if not isinstance(mixer, BaseAttention):
        return first_line(mixer)
    width = mixer.head_width_for(config.width)
    scope = f"{length} x {length} weights"
    if isinstance(mixer, Axial):
        scope = "within rows and columns in turn"
    elif isinstance(mixer, Causal):
        scope = f"{length} x {length} weights, 0 for the tokens after each token"
    elif isinstance(mixer, Local):
        scope = f"within {mixer.rows}x{mixer.columns} windows"
    scaled = f"q k' / sqrt({width})" if mixer.scale == "1/sqrt(d)" else f"{mixer.scale:g} q k'"
    norms = f"{', normed' * mixer.output_norm}{', q and k normed' * mixer.qk_norm}"
    return f"softmax({scaled}) v in {mixer.heads} heads of {width}, {scope}{norms}"


def describe_mlp(config: Vit) -> str:
    hidden = config.mlp.hidden(config.width)
    name = "GELU" if "gelu" in config.mlp.activation else config.mlp.activation
    middle = f"{name}(gate) * value of {hidden}" if isinstance(config.mlp, SwiGlu) else f"{name} of {hidden}"
    return f"{config.width} -> {middle} -> {config.width}{', LN before the last layer' * config.mlp.norm}"


def output_equations(config: Vit) -> tuple[str, ...]:
    pooled = POOLS.get(config.pool.kind, "gathered by a learned query")
    if isinstance(config.pool, NormedPool) and config.pool.norm in ("after", "both"):
        pooled += ", LN of that"
    normed = config.block.final_norm and not config.pool.normalizes()
    norm = f"LN(z_{config.depth})" if normed else f"z_{config.depth}"
    cited = "    (eq. 4)" if normed and config.block.kind == "pre" and config.pool.kind == "cls" else ""
    return (f"y = {norm}, {pooled}{cited}", describe_head(config))


def describe_head(config: Vit | Resnet) -> str:
    if isinstance(config.head, ProjectionHead):
        activation = "" if config.head.activation == "identity" else f", {config.head.activation} of that"
        return f"      linear to an embedding of {config.head.width}{activation}"
    if isinstance(config.head, NoHead):
        return "      y is the answer: no head"
    hidden = f"{config.head.activation} layer, then " if isinstance(config.head, TanhHead) else ""
    both = "the mean of two heads, one for each token, each " if isinstance(config.head, DistilledHead) else ""
    scaled = f", divided by the temperature {config.head.temperature:g}" if config.head.temperature != 1 else ""
    return f"      {both}{hidden}linear to {config.head.num_classes} classes{scaled}"
