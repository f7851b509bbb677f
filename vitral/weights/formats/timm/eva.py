"""timm's Eva: EVA, EVA-02, DINOv3, RoPE-ViT, the Perception Encoder: arguments to our model and its tensors' layout."""

from typing import Any

from vitral.core.config import Size
from vitral.models.block import NoScale, PreNorm, ResidualPostNorm
from vitral.models.mlp import MlpConfig
from vitral.models.position import Combined, NoPosition, PositionConfig, Rope2d, RopeAxial, RopeMixed
from vitral.models.position.rotary import AxisOrder
from vitral.models.vit import Tokens, Vit
from vitral.weights.formats.timm.arguments import (
    Arguments,
    Dropout,
    PoolArguments,
    gated_config,
    mlp_config,
    pool_config,
    unsupported,
)
from vitral.weights.formats.timm.layout import Qkv, TensorLayout
from vitral.weights.formats.timm.vit import TimmModel, stem_config, table_config


def eva_model(arguments: Arguments) -> TimmModel:
    """Eva."""
    given, width = arguments, arguments.count("embed_dim", 768, least=1)
    drop, pre_norm = given.dropout(), given.flag("use_pre_transformer_norm")
    cls, registers = given.flag("class_token", True), given.count("num_reg_tokens", 0)
    image = given.size("img_size", 224)
    post = given.flag("use_post_norm")
    mlp, layout = eva_mlp(given, width, drop, post)
    scale = NoScale() if post else given.layer_scale(zero_is_none=False)
    given.value("init_values", None)
    path: dict[str, Any] = {"drop_path_rate": drop.path}
    model = Vit(
        **given.common(image),
        stem=stem_config(given, image, bias=not pre_norm),
        tokens=Tokens(cls=cls, registers=registers, norm=pre_norm, dropout=drop.tokens),
        position=eva_position(given, cls, registers),
        block=ResidualPostNorm(scale=scale, **path) if post else PreNorm(scale=scale, **path),
        mixer=given.attention("scale_attn_inner"),
        mlp=mlp,
        pool=pool_config(eva_pool(given), cls, mlp),
    )
    return TimmModel(model, layout, given.finish())


def eva_mlp(given: Arguments, width: int, drop: Dropout, post: bool) -> tuple[MlpConfig, TensorLayout]:
    """The MLP, and the layout of all tensors."""
    hidden, align = int(width * given.number("mlp_ratio", 4.0)), given.count("swiglu_align_to", 0)
    gated, normed = given.flag("swiglu_mlp"), given.flag("scale_mlp")
    fields: dict[str, Any] = {"norm": normed, "dropout": drop.layers, "activation": "silu" if gated else "gelu"}
    apart = gated and (normed or (bool(align) and not post))
    if apart and align:
        hidden += -hidden % align
    mlp = gated_config(hidden, width, **fields) if gated else mlp_config(hidden, width, **fields)
    only_attention = given.flag("attn_only_layer_scale")
    return mlp, TensorLayout(
        qkv=eva_qkv(given),
        scale="gamma_of_attention" if only_attention else "gamma",
        gated="split" if apart else "packed",
        kv_heads=kv_heads(given),
    )


def eva_qkv(given: Arguments) -> Qkv:
    kind = given.text("attn_type", "eva")
    fused = given.flag("qkv_fused", True)
    if kind == "rope":
        return "fused" if fused else "split"
    return "fused_without_k_bias" if fused else "split_without_k_bias"


def kv_heads(given: Arguments) -> tuple[int, ...]:
    """The heads of k and v in each layer; nothing where there are as many as of q."""
    heads, found = given.count("num_heads", 12), given.value("num_kv_heads", None)
    depth = given.count("depth", 12)
    if found is None or found == heads:
        return ()
    each = (found,) * depth if isinstance(found, int) else tuple(found)
    return tuple(count or heads for count in each)


def eva_position(given: Arguments, cls: bool, registers: int) -> PositionConfig:
    table = table_config(given, cls, registers)
    learned = table if given.flag("use_abs_pos_emb", True) else None
    inside = rope_config(given)
    if learned and inside:
        return Combined(added=learned, inside=inside)
    return learned or inside or NoPosition()


def rope_config(given: Arguments) -> Rope2d | RopeAxial | RopeMixed | None:
    """The rotary embedding of queries and keys."""
    used, kind = given.flag("use_rot_pos_emb"), given.text("rope_type", "cat")
    base, offset = given.number("rope_temperature", 10_000.0), given.number("rope_grid_offset", 0.0)
    order: AxisOrder = "columns_first" if given.text("rope_grid_indexing", "ij") == "xy" else "rows_first"
    half, reference = given.flag("rope_rotate_half"), given.value("ref_feat_shape", None)
    if not used:
        return None
    if half != (kind == "dinov3"):
        raise unsupported(
            f"timm's rope_type={kind} with rope_rotate_half={half} has no counterpart", "model_args.rope_type"
        )
    if kind == "dinov3" and not offset:
        return Rope2d(base=base)
    if kind == "mixed":
        return RopeMixed(base=base, order=order)
    if kind == "cat":
        return RopeAxial(
            base=base, offset=offset, order=order, reference="none" if reference is None else Size.parse(reference)
        )
    raise unsupported(f"timm's rotary embedding {kind!r} has no counterpart", "model_args.rope_type")


def eva_pool(given: Arguments) -> PoolArguments:
    name = given.text("global_pool", "avg")
    given_after, given_before = given.optional_flag("use_fc_norm"), given.optional_flag("use_post_transformer_norm")
    after = name == "avg" if given_after is None else given_after
    before = not after if given_before is None else given_before
    heads, ratio = given.value("attn_pool_num_heads", None), given.value("attn_pool_mlp_ratio", None)
    prefix = name == "map"  # the query attends to all tokens
    return PoolArguments(name, before, after, prefix, heads or 0, float(ratio or 0))
