"""timm's NaFlexVit, for images of one size: arguments to our model and the layout of its tensors."""

from dataclasses import replace

from vitral.core.config import Size
from vitral.models.position import Learned1d, NoPosition, PositionConfig, Resampling
from vitral.models.vit import Tokens, Vit
from vitral.weights.formats.timm.arguments import Arguments, PoolArguments, pool_config, unsupported
from vitral.weights.formats.timm.vit import TimmModel, check_embed_norm, stem_config, vit_block, vit_mlp

GRID = 16  # rows and columns of the table of positions
FILTERS: dict[str, Resampling] = {"bicubic": "bicubic_antialias", "bilinear": "bilinear_antialias"}
# Only for batches of images of several sizes, or for settings that choose another kind of block.
ONLY_BATCHES = ("pos_embed_use_grid_sample", "use_key_only_attn_mask", "enable_patch_interpolator")


def naflex_model(arguments: Arguments) -> TimmModel:
    """NaFlexVit."""
    given, width = arguments, arguments.count("embed_dim", 768, least=1)
    for name in ("rope_type", "attn_type", "input_norm_layer", "num_kv_heads", "attn_layer"):
        given.only(name, None, "", "none", "standard")
    for name in ("attn_gated", "swiglu_mlp", "attn_only_layer_scale", "pos_embed_ar_preserving", "rope_rotate_half"):
        given.only(name, False)
    given.used |= {*ONLY_BATCHES, "img_size", "qkv_fused"}
    given.only("embed_proj_type", "linear")
    given.only("patchify_channels_last", True)
    check_embed_norm(given, given.given.get("norm_layer"))
    drop, pre_norm, cls = given.dropout(), given.flag("pre_norm"), given.flag("class_token")
    grid, patch = given.size("pos_embed_grid_size", GRID), given.size("patch_size", 16)
    image = Size(grid.height * patch.height, grid.width * patch.width)
    mlp, layout = vit_mlp(given, width, drop)
    after, last = bool(given.optional_flag("fc_norm")), given.flag("final_norm", True)
    heads, ratio = given.value("attn_pool_num_heads", None), given.value("attn_pool_mlp_ratio", None)
    pool = PoolArguments(
        given.text("global_pool", "map"),
        before=last and not after,
        after=last and after,
        prefix=given.flag("pool_include_prefix"),
        heads=heads or 0,
        mlp_ratio=float(ratio or 0),
    )
    model = Vit(
        **given.common(image),
        stem=stem_config(given, image, bias=not pre_norm),
        tokens=Tokens(cls=cls, registers=given.count("reg_tokens", 0), norm=pre_norm, dropout=drop.tokens),
        position=naflex_position(given),
        block=vit_block(given, drop),
        mixer=given.attention("scale_attn_inner_norm", project_bias=True),
        mlp=mlp,
        pool=pool_config(pool, cls, mlp),
    )
    return TimmModel(model, replace(layout, naflex=True), given.finish())


def naflex_position(given: Arguments) -> PositionConfig:
    """A table for patches alone; other tokens have no position."""
    kind, filter = given.text("pos_embed", "learned"), given.text("pos_embed_interp_mode", "bicubic")
    if kind in ("", "none"):
        return NoPosition()
    if kind != "learned" or filter not in FILTERS:
        raise unsupported(
            f"timm's {kind} positions, resampled as {filter}, have no counterpart", "model_args.pos_embed"
        )
    return Learned1d(cls=False, resampling=FILTERS[filter])
