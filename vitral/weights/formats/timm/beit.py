"""timm's Beit and VisionTransformerRelPos, with relative positions: arguments to our model and its tensors' layout."""

from typing import Any

from vitral.models.block import NoScale, PreNorm, ResidualPostNorm
from vitral.models.position import Combined, Learned1d, NoPosition, PositionConfig, RelativeBias, RelativeMlp
from vitral.models.vit import Tokens, Vit
from vitral.weights.formats.timm.arguments import (
    Arguments,
    PoolArguments,
    gated_config,
    mlp_config,
    pool_config,
    unsupported,
)
from vitral.weights.formats.timm.layout import TensorLayout
from vitral.weights.formats.timm.vit import RESAMPLING, TimmModel, stem_config

RELATIVE_HIDDEN = 128  # of the MLP that gives the biases


def beit_model(arguments: Arguments) -> TimmModel:
    """Beit."""
    given, width = arguments, arguments.count("embed_dim", 768, least=1)
    drop, image = given.dropout(), given.size("img_size", 224)
    hidden, gated = int(width * given.number("mlp_ratio", 4.0)), given.flag("swiglu_mlp")
    make, activation = (gated_config, "silu") if gated else (mlp_config, "gelu")
    mlp = make(hidden, width, norm=given.flag("scale_mlp"), dropout=drop.layers, activation=activation)
    name = given.text("global_pool", "avg")
    model = Vit(
        **given.common(image),
        stem=stem_config(given, image, bias=True),
        tokens=Tokens(dropout=drop.tokens),
        position=beit_position(given),
        block=PreNorm(scale=given.layer_scale(), drop_path_rate=drop.path),
        mixer=given.attention(qk_norm=False),
        mlp=mlp,
        pool=pool_config(PoolArguments(name, before=name != "avg", after=name == "avg"), True, mlp),
    )
    layout = TensorLayout(
        qkv="fused_without_k_bias", scale="gamma", gated="split", relative="attn", shared_relative="rel_pos_bias"
    )
    return TimmModel(model, layout, given.finish())


def beit_position(given: Arguments) -> PositionConfig:
    own, shared = given.flag("use_rel_pos_bias"), given.flag("use_shared_rel_pos_bias")
    learned = Learned1d(resampling=RESAMPLING) if given.flag("use_abs_pos_emb", True) else None
    if own and shared:
        message = "a table of relative positions in each layer and one for all has no counterpart"
        raise unsupported(message, "model_args.use_shared_rel_pos_bias")
    inside = RelativeBias(shared=shared, resampling="geometric") if own or shared else None
    if learned and inside:
        return Combined(added=learned, inside=inside)
    return learned or inside or NoPosition()


def relpos_model(arguments: Arguments) -> TimmModel:
    """VisionTransformerRelPos."""
    given, width = arguments, arguments.count("embed_dim", 768, least=1)
    drop, image = given.dropout(), given.size("img_size", 224)
    hidden, cls = int(width * given.number("mlp_ratio", 4.0)), given.flag("class_token")
    block = given.value("block_fn", None) or "RelPosBlock"
    path: dict[str, Any] = {"drop_path_rate": drop.path}
    if block not in ("RelPosBlock", "ResPostRelPosBlock"):
        raise unsupported(f"its block, timm's {block}, has no counterpart", "model_args.block_fn")
    given.given.setdefault("init_values", 1e-6)
    scale, mlp = given.layer_scale(), mlp_config(hidden, width, activation=given.activation(), dropout=drop.layers)
    after = given.flag("fc_norm")
    pool = PoolArguments(given.text("global_pool", "avg"), before=not after, after=after)
    model = Vit(
        **given.common(image),
        stem=stem_config(given, image, bias=True),
        tokens=Tokens(cls=cls),
        position=relative_position(given),
        block=PreNorm(scale=scale, **path) if block == "RelPosBlock" else ResidualPostNorm(scale=NoScale(), **path),
        mixer=given.attention(),
        mlp=mlp,
        pool=pool_config(pool, cls, mlp),
    )
    return TimmModel(model, TensorLayout(), given.finish())


def relative_position(given: Arguments) -> PositionConfig:
    kind, shared = given.text("rel_pos_type", "mlp"), given.flag("shared_rel_pos")
    hidden = given.value("rel_pos_dim", None) or RELATIVE_HIDDEN
    if kind == "mlp":
        return RelativeMlp(hidden=hidden, shared=shared)
    if kind == "bias":
        return RelativeBias(shared=shared, resampling="geometric")
    raise unsupported(f"timm's rel_pos_type={kind} has no counterpart", "model_args.rel_pos_type")
