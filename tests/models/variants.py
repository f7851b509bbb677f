"""Every kind that the model's unions name, each in a small model. A new kind is here as soon as its union has it."""

from typing import Any

from vitral.core.config import Config, Size, union_members
from vitral.models import (
    Attention,
    AttentionPool,
    Axial,
    Causal,
    ClassPool,
    Combined,
    Convolutions,
    DistilledHead,
    DistilledPool,
    GradientCheckpointing,
    Hybrid,
    Identity,
    Learned1d,
    Learned2d,
    LinearHead,
    Local,
    MeanAllPool,
    MeanPool,
    Mlp,
    OverlappingPatches,
    Palette,
    Patches,
    Pooling,
    PreNorm,
    ProjectionHead,
    Relative2d,
    RelativeBias,
    RelativeMlp,
    Resnet,
    RmsNorm,
    Rope2d,
    RopeAxial,
    ShiftedPatches,
    SinCos2d,
    SwiGlu,
    TanhHead,
    TokenMlp,
    Tokens,
    Vit,
)
from vitral.models.attention import MixerConfig
from vitral.models.block import BlockConfig, LayerScale, MemoryConfig, ScaleConfig
from vitral.models.embed import StemConfig
from vitral.models.head import HeadConfig
from vitral.models.init import InitConfig
from vitral.models.mlp import MlpConfig
from vitral.models.norm import NormConfig
from vitral.models.pool import PoolConfig
from vitral.models.position import PositionConfig

UNIONS = {
    "stem": StemConfig,
    "position": PositionConfig,
    "block": BlockConfig,
    "mixer": MixerConfig,
    "mlp": MlpConfig,
    "norm": NormConfig,
    "pool": PoolConfig,
    "head": HeadConfig,
    "init": InitConfig,
    "memory": MemoryConfig,
}

# What a kind needs to fit into a small model; a kind that is not here is built as it stands.
SMALL: dict[type[Config], dict[str, Any]] = {
    Patches: {"patch": Size(8, 8)},
    Hybrid: {"layers": (1, 1), "root": 32},
    Convolutions: {"widths": (8, 12, 16)},
    OverlappingPatches: {"patch": Size(12, 13), "stride": Size(8, 8)},
    ShiftedPatches: {"patch": Size(8, 8)},
    Palette: {"colors": 16},
    Attention: {"heads": 2},
    Causal: {"heads": 2},
    Axial: {"heads": 2},
    Local: {"heads": 2, "rows": 2, "columns": 2},
    TokenMlp: {"hidden": 24},
    AttentionPool: {"heads": 2},
    LinearHead: {"num_classes": 4},
    TanhHead: {"num_classes": 4},
    DistilledHead: {"num_classes": 4},
    ProjectionHead: {"width": 12},
    RelativeMlp: {"hidden": 8},
}
NO_CLASS = {"tokens": Tokens(cls=False), "pool": MeanPool()}
ALONGSIDE: dict[type[Config], dict[str, Any]] = {
    Pooling: NO_CLASS,
    Identity: NO_CLASS,
    Causal: {"pool": MeanPool()},
    Palette: {"image_size": Size(8, 12)},
    DistilledPool: {"tokens": Tokens(registers=1)},
    DistilledHead: {"tokens": Tokens(registers=1), "pool": DistilledPool()},
}


def small(**fields: Any) -> Vit:
    """A model of 4 x 6 patches and two layers, with some fields of one's own."""
    base: dict[str, Any] = {
        "image_size": Size(32, 48),
        "width": 32,
        "depth": 2,
        "stem": Patches(patch=Size(8, 8)),
        "mixer": Attention(heads=2),
        "head": LinearHead(num_classes=4),
    }
    return Vit(**(base | fields))


def kinds() -> dict[str, Vit]:
    """One model for each member of each union."""
    return {
        f"{field}-{kind.model_fields['kind'].default}": small(
            **{field: kind(**SMALL.get(kind, {}))}, **ALONGSIDE.get(kind, {})
        )
        for field, union in UNIONS.items()
        for kind in union_members(union)
    }


def options() -> dict[str, Vit]:
    """The choices inside a kind, and kinds that meet."""
    attention = Attention(heads=2)
    return {
        "no-class-token": small(**NO_CLASS),
        "registers": small(tokens=Tokens(registers=3)),
        "registers-alone": small(tokens=Tokens(cls=False, registers=2), pool=MeanPool()),
        "gray-rectangles": small(channels=1, stem=Patches(patch=Size(8, 4))),
        "patch-norms": small(stem=Patches(patch=Size(8, 8), norm="both")),
        "hybrid-of-patches": small(stem=Hybrid(layers=(), patch=Size(2, 2), root=32)),
        "hybrid-unprojected": small(width=128, stem=Hybrid(layers=(1,), root=32, project=False)),
        "hybrid-variance": small(stem=Hybrid(layers=(1,), root=32, patch=Size(2, 2), standardization="variance")),
        "convolutions-of-gray": small(stem=Convolutions(widths=(8, 8, 8), activation="gelu"), channels=1),
        "convolutions-without-norm": small(stem=Convolutions(widths=(8, 8, 8), same_size=2, norm=False)),
        "learned1d-layers": small(position=Learned1d(where="layers")),
        "learned1d-shared": small(position=Learned1d(where="shared")),
        "learned1d-patches-only": small(position=Learned1d(cls=False)),
        "learned1d-bicubic": small(position=Learned1d(resampling="bicubic")),
        "learned1d-antialias": small(position=Learned1d(resampling="bicubic_antialias")),
        "learned1d-centers": small(position=Learned1d(resampling="bilinear_centers")),
        "learned1d-bilinear-antialias": small(position=Learned1d(resampling="bilinear_antialias")),
        "learned1d-registers": small(
            position=Learned1d(where="layers", register_rows=True), tokens=Tokens(registers=2)
        ),
        "sincos2d-no-endpoint": small(position=SinCos2d(endpoint=False)),
        "learned1d-corners": small(position=Learned1d(resampling="bicubic_corners")),
        "learned1d-offset": small(position=Learned1d(resampling="bicubic_offset")),
        "learned2d-layers": small(position=Learned2d(where="layers")),
        "learned2d-shared": small(position=Learned2d(where="shared")),
        "wide-heads": small(mixer=Attention(heads=3, head_width=20)),
        "no-projection": small(mixer=Attention(heads=1, project=False)),
        "no-qkv-bias": small(mixer=Attention(heads=2, qkv_bias=False)),
        "query-key-norm": small(mixer=Attention(heads=2, qk_norm=True)),
        "attention-scale": small(mixer=Attention(heads=2, scale=0.5)),
        "attention-norm": small(mixer=Attention(heads=2, output_norm=True, project_bias=False)),
        "rms-norms": small(
            norm=RmsNorm(),
            mixer=Attention(heads=2, qk_norm=True),
            mlp=SwiGlu(bias=False, norm=True, multiple=1),
            stem=Patches(patch=Size(8, 8), norm="after"),
        ),
        "gated-gelu": small(mlp=SwiGlu(activation="gelu")),
        "relu-head": small(head=TanhHead(num_classes=4, activation="relu")),
        "cropped-remainder": small(image_size=Size(37, 50), stem=Patches(patch=Size(8, 8), remainder="crop")),
        "padded-remainder": small(image_size=Size(29, 42), stem=Patches(patch=Size(8, 8), remainder="pad")),
        "norm-nowhere": small(pool=ClassPool(norm="none")),
        "norm-twice": small(pool=MeanAllPool(norm="both")),
        "query-of-patches": small(pool=AttentionPool(heads=4, tokens="patches", mlp_ratio=2.0)),
        "query-as-it-is": small(pool=AttentionPool(project_query=False, mlp_ratio="none")),
        "pooler": small(head=ProjectionHead(width=12, bias=True, activation="tanh")),
        "shared-bias": small(position=RelativeBias(shared=True), tokens=Tokens(registers=1)),
        "bias-of-the-mean": small(position=RelativeBias(), **NO_CLASS),
        "rope-rounded": small(position=Rope2d(precision="bfloat16")),
        "rope-reference": small(position=RopeAxial(offset=1.0, reference=Size(3, 5), order="columns_first")),
        "table-and-bias": small(position=Combined(added=Learned1d(cls=False), inside=RelativeBias())),
        "mlp-norm": small(mlp=Mlp(norm=True, activation="relu")),
        "erf": small(mlp=Mlp(activation="gelu")),
        "quick": small(mlp=Mlp(activation="quick_gelu")),
        "first-norm": small(tokens=Tokens(norm=True), stem=Patches(patch=Size(8, 8), bias=False)),
        "norm-of-the-mean": small(tokens=Tokens(cls=False), pool=MeanPool(norm="after")),
        "axial-rope-registers": small(mixer=Axial(heads=2), position=Rope2d(), tokens=Tokens(registers=2)),
        "axial-without-class": small(mixer=Axial(heads=2), **NO_CLASS),
        "local-relative": small(mixer=Local(heads=2, rows=2, columns=2), position=Relative2d()),
        "layer-scale": small(block=PreNorm(scale=LayerScale(init=0.5))),
        "one-layer": small(depth=1),
        "recompute-relative": small(memory=GradientCheckpointing(), position=Relative2d(), mixer=attention),
    }


def scales() -> dict[str, Vit]:
    return {
        f"scale-{kind.model_fields['kind'].default}": small(block=PreNorm(scale=kind()))
        for kind in union_members(ScaleConfig)
    }


VARIANTS: dict[str, Vit | Resnet] = {
    **kinds(),
    **options(),
    **scales(),
    "resnet": Resnet(layers=(1, 1), root=32, image_size=Size(32, 48), head=LinearHead(num_classes=4)),
}
VITS = {name: config for name, config in VARIANTS.items() if isinstance(config, Vit)}
