"""timm's VisionTransformer, its hybrids and its distilled form: arguments to our model and its tensors' layout."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from vitral.core.config import Size
from vitral.models.block import BlockConfig, MultiBranch, NoScale, Parallel, PreNorm, ResidualPostNorm
from vitral.models.embed import Hybrid, Patches, StemConfig
from vitral.models.head import DistilledHead, NoHead
from vitral.models.mlp import MlpConfig
from vitral.models.pool import DistilledPool, PrefixPool
from vitral.models.position import Learned1d, NoPosition, PositionConfig, Resampling
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
from vitral.weights.formats.timm.layout import TensorLayout

RESAMPLING: Resampling = "bicubic_antialias"  # of learned positions
Remainder = Literal["refuse", "crop", "pad"]


class TimmModel(NamedTuple):
    """A model of timm as ours."""

    model: Vit
    layout: TensorLayout
    notes: tuple[str, ...] = ()  # what is not carried over


def vit_model(arguments: Arguments) -> TimmModel:
    """VisionTransformer."""
    given, width = arguments, arguments.count("embed_dim", 768, least=1)
    drop, pre_norm = given.dropout(), given.flag("pre_norm")
    cls, registers = given.flag("class_token", True), given.count("reg_tokens", 0)
    image = given.size("img_size", 224)
    mlp, layout = vit_mlp(given, width, drop)
    given.only("attn_layer", "Attention", "attn", "", None)
    pool = vit_pool(given)
    check_embed_norm(given, given.given.get("norm_layer"))
    block = vit_block(given, drop)
    if isinstance(block, Parallel):
        layout = TensorLayout(contract_bias=mlp.bias)
        mlp = mlp.model_copy(update={"bias": True})
    model = Vit(
        **given.common(image),
        stem=stem_config(given, image, bias=not pre_norm),
        tokens=Tokens(cls=cls, registers=registers, norm=pre_norm, dropout=drop.tokens),
        position=vit_position(given, cls, registers),
        block=block,
        mixer=given.attention("scale_attn_norm", project_bias=True),
        mlp=mlp,
        pool=pool_config(pool, cls, mlp),
    )
    return TimmModel(model, layout, given.finish())


def distilled_model(arguments: Arguments) -> TimmModel:
    """VisionTransformerDistilled: DeiT with a distillation token, which is a register of ours, and two heads."""
    arguments.only("global_pool", "token")
    arguments.only("no_embed_class", False)
    arguments.only("reg_tokens", 0)
    arguments.only("fc_norm", None, False)
    found = vit_model(arguments)
    model, head = found.model, arguments.head()
    tokens = model.tokens.model_copy(update={"registers": 1})
    two = head if isinstance(head, NoHead) else DistilledHead(num_classes=arguments.count("num_classes", 1000))
    position = vit_position(arguments, cls=True, registers=1)
    pool = PrefixPool() if isinstance(head, NoHead) else DistilledPool()  # without heads the mean of both tokens
    changed = model.model_copy(update={"tokens": tokens, "position": position, "pool": pool, "head": two})
    return found._replace(model=Vit.model_validate(changed.model_dump()))


def stem_config(given: Arguments, image: Size, bias: bool) -> StemConfig:
    """Patches of pixels, or of the feature map of a ResNet."""
    patch, pad = given.size("patch_size", 16), given.flag("dynamic_img_pad")
    normed = given.value("embed_norm_layer", None) is not None
    embed = given.value("embed_layer", None)
    if isinstance(embed, dict):
        name = embed.get("name")
        if name != "resnetv2" or not bias or normed:
            raise unsupported(f"its stem, timm's {name}, has no counterpart", "model_args.embed_layer")
        layers, root = tuple(embed.get("layers", ())), embed.get("root", 64)
        return Hybrid(layers=layers, root=root, patch=patch, standardization="variance", group_eps=1e-5)
    if embed not in (None, "PatchEmbed"):
        raise unsupported(f"its stem, timm's {embed}, has no counterpart", "model_args.embed_layer")
    divides = not image.height % patch.height and not image.width % patch.width
    remainder: Remainder = "pad" if pad else "refuse" if divides else "crop"
    return Patches(patch=patch, bias=bias, norm="after" if normed else "none", remainder=remainder)


def check_embed_norm(given: Arguments, norm: Any) -> None:
    """The norm of patches must be that of the layers."""
    embed = given.value("embed_norm_layer", None)
    if embed is not None and given.norm("embed_norm_layer") != Arguments({"norm_layer": norm}).norm():
        raise unsupported(
            "a norm of patches unlike that of the layers has no counterpart", "model_args.embed_norm_layer"
        )


def vit_position(given: Arguments, cls: bool, registers: int) -> PositionConfig:
    given.only("pos_embed", "learn", "none", "")
    table = table_config(given, cls, registers)
    return table if given.text("pos_embed", "learn") == "learn" else NoPosition()


def table_config(given: Arguments, cls: bool, registers: int) -> Learned1d:
    """A table with rows for all tokens, or for the patches alone."""
    rows = not given.flag("no_embed_class")
    every = bool(rows and registers)
    return Learned1d(cls=rows and bool(cls or registers), register_rows=every, resampling=RESAMPLING)


def vit_mlp(given: Arguments, width: int, drop: Dropout) -> tuple[MlpConfig, TensorLayout]:
    """The MLP, and how the tensors of a gated one are laid out."""
    hidden = int(width * given.number("mlp_ratio", 4.0))
    layer = given.value("mlp_layer", None) or "Mlp"
    fields: dict[str, Any] = {
        "activation": given.activation(),
        "bias": given.flag("proj_bias", True),
        "norm": given.flag("scale_mlp_norm"),
        "dropout": drop.layers,
    }
    name = layer.get("name") if isinstance(layer, dict) else layer
    if name == "Mlp":
        return mlp_config(hidden, width, **fields), TensorLayout()
    if name == "SwiGLU":
        return gated_config(hidden, width, **fields), TensorLayout(gated="split")
    if name == "GluMlp" and isinstance(layer, dict) and layer.get("gate_last") is False:
        return gated_config(hidden // 2, width, **fields), TensorLayout()
    raise unsupported(f"its MLP, timm's {name}, has no counterpart", "model_args.mlp_layer")


def vit_block(given: Arguments, drop: Dropout) -> BlockConfig:
    name = given.value("block_fn", None) or "Block"
    path: dict[str, Any] = {"drop_path_rate": drop.path}
    if name == "ParallelScalingBlock":
        return Parallel(scale=given.layer_scale(zero_is_none=False), **path)
    scale = given.layer_scale()
    kinds: dict[str, Callable[[], BlockConfig]] = {
        "Block": lambda: PreNorm(scale=scale, **path),
        "ResPostBlock": lambda: ResidualPostNorm(scale=NoScale(), **path),  # the norms have the scale
        "ParallelThingsBlock": lambda: MultiBranch(branches=2, scale=scale, **path),
    }
    if name not in kinds:
        raise unsupported(f"its block, timm's {name}, has no counterpart", "model_args.block_fn")
    return kinds[name]()


def vit_pool(given: Arguments) -> PoolArguments:
    name = given.text("global_pool", "token")
    given_norm, last = given.optional_flag("fc_norm"), given.flag("final_norm", True)
    after = name in ("avg", "avgmax", "max") if given_norm is None else given_norm
    prefix = given.flag("pool_include_prefix")
    return PoolArguments(name, before=last and not after, after=last and after, prefix=prefix)
