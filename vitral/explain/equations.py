"""The paper's equations with a model's own numbers in them."""

from vitral.model import Axial, Hybrid, Local, Resnet, Rope2d, Vit
from vitral.model.attention import AttentionKind
from vitral.model.head import NoHead, TanhHead
from vitral.model.mlp import SwiGlu
from vitral.model.position import Learned1d, Learned2d, NoPosition, PositionKind, SinCos1d, SinCos2d

POOLS = {"cls": "of the class token", "mean": "mean of the patches", "mean_all": "mean of all tokens"}


def equations(config: Vit | Resnet) -> tuple[str, ...]:
    """One line for each equation of section 3.1, as this model computes it."""
    if isinstance(config, Resnet):
        return residual_equations(config)
    return (*embedding(config), *layers(config), *answer(config))


def residual_equations(config: Resnet) -> tuple[str, ...]:
    grid, width = config.grid(config.image), config.outputs()
    units = " + ".join(map(str, config.layers))
    return (
        f"x = relu(x + F(x)), {units} bottleneck units, GroupNorm of 32 groups, standardised kernels",
        f"y = mean of the last map, {grid} places of {width}",
        classes(config),
    )


def embedding(config: Vit) -> tuple[str, ...]:
    grid, width, stem = config.stem.grid(config.image), config.width, config.stem
    first = ["x_class"] if config.tokens.cls else []
    first += [f"r_1; ...; r_{config.tokens.registers}"] if config.tokens.registers else []
    names = "; ".join([*first, "x_1 E; ...", f"x_{grid.cells()} E"])
    added = isinstance(config.position, Learned1d | Learned2d | SinCos1d | SinCos2d)
    if isinstance(stem, Hybrid):
        source, numbers = f"{stem.patch} patches of a ResNet's map", stem.pixels()
    else:
        source, numbers = f"{stem.patch} patches", config.channels * stem.patch.height * stem.patch.width
    length = config.layout(config.image).length()
    lines = [f"z_0 = [{names}]{' + E_pos' if added else ''}    (eq. 1)"]
    lines.append(
        f"      {grid} = {grid.cells()} {source} of {numbers} numbers, E: {numbers} x {width}, z: {length} x {width}"
    )
    return (*lines, f"      {place(config.position)}")


def place(position: PositionKind) -> str:
    if isinstance(position, NoPosition):
        return "no positions: the patches are a bag"
    if isinstance(position, Rope2d):
        return "positions turn q and k in every layer (rope2d)"
    if position.inside_attention:
        return f"positions add logits in every layer ({type(position).__name__.lower()})"
    where = position.where if isinstance(position, Learned1d | Learned2d) else "stem"
    times = {"stem": "once", "layers": "before every layer", "shared": "before every layer, with the same weights"}
    return f"E_pos is {type(position).__name__.lower()}, added {times[where]}"


def layers(config: Vit) -> tuple[str, ...]:
    mixer = "MSA" if isinstance(config.mixer, AttentionKind) else type(config.mixer).__name__
    depth = config.depth
    if config.block.final_norm:
        first, second = f"z'_l = {mixer}(LN(z_l-1)) + z_l-1", "z_l = MLP(LN(z'_l)) + z'_l"
    else:
        first, second = f"z'_l = LN(z_l-1 + {mixer}(z_l-1))", "z_l = LN(z'_l + MLP(z'_l))"

    def cite(number: int) -> str:  # the paper's equations are those of the norm that comes first
        return f"    (eq. {number})" if config.block.final_norm else ""

    return (
        f"{first}, l = 1 ... {depth}{cite(2)}",
        f"      {mixing(config)}",
        f"{second}, l = 1 ... {depth}{cite(3)}",
        f"      {thinking(config)}",
    )


def mixing(config: Vit) -> str:
    mixer, length = config.mixer, config.layout(config.image).length()
    if not isinstance(mixer, AttentionKind):
        return (type(mixer).__doc__ or "").splitlines()[0]
    width = mixer.width_of_head(config.width)
    scope = ""
    if isinstance(mixer, Axial):
        scope = ", within rows and columns in turn"
    elif isinstance(mixer, Local):
        scope = f", within {mixer.rows}x{mixer.columns} windows"
    return f"softmax(q k' / sqrt({width})) v in {mixer.heads} heads of {width}, {length} x {length} weights{scope}"


def thinking(config: Vit) -> str:
    hidden = config.mlp.hidden(config.width)
    middle = f"silu(gate) * value of {hidden}" if isinstance(config.mlp, SwiGlu) else f"GELU of {hidden}"
    return f"{config.width} -> {middle} -> {config.width}"


def answer(config: Vit) -> tuple[str, ...]:
    what = POOLS.get(config.pool.kind, "gathered by a learned query")
    norm = f"LN(z_{config.depth})" if config.block.final_norm else f"z_{config.depth}"
    return (f"y = {norm}, {what}    (eq. 4)", classes(config))


def classes(config: Vit | Resnet) -> str:
    if isinstance(config.head, NoHead):
        return "      y is the answer: no head"
    hidden = "tanh layer, then " if isinstance(config.head, TanhHead) else ""
    return f"      {hidden}linear to {config.head.classes} classes"
