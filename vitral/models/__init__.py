"""Models: images in, logits and features out. No files, data or training here."""

from vitral.models.attention import Attention, Axial, BaseMixer, Identity, Local, Pooling, TokenMlp, attention_weights
from vitral.models.base import BuildContext, Features, Grid, Layout, Model
from vitral.models.block import (
    GradientCheckpointing,
    KeepActivations,
    LayerScale,
    MultiBranch,
    Parallel,
    PostNorm,
    PreNorm,
    ResidualPostNorm,
)
from vitral.models.embed import Hybrid, Patches
from vitral.models.head import DistilledHead, LinearHead, NoHead, ProjectionHead, TanhHead
from vitral.models.hooks import attention_maps
from vitral.models.init import BaseInit, BigVision, Normal, Zeros
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.norm import LayerNorm, RmsNorm
from vitral.models.pool import AttentionPool, ClassMeanPool, ClassPool, DistilledPool, MeanAllPool, MeanPool
from vitral.models.position import (
    AdditivePosition,
    BasePosition,
    Combined,
    Learned1d,
    Learned2d,
    NoPosition,
    Position,
    Relative1d,
    Relative2d,
    RelativeBias,
    RelativeMlp,
    Rope2d,
    RopeAxial,
    RopeMixed,
    SinCos1d,
    SinCos2d,
)
from vitral.models.registry import model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Tokens, VisionTransformer, Vit

__all__ = [
    "AdditivePosition",
    "Attention",
    "AttentionPool",
    "Axial",
    "BaseInit",
    "BaseMixer",
    "BasePosition",
    "BigVision",
    "BuildContext",
    "ClassMeanPool",
    "ClassPool",
    "Combined",
    "DistilledHead",
    "DistilledPool",
    "Features",
    "GradientCheckpointing",
    "Grid",
    "Hybrid",
    "Identity",
    "KeepActivations",
    "LayerNorm",
    "LayerScale",
    "Layout",
    "Learned1d",
    "Learned2d",
    "LinearHead",
    "Local",
    "MeanAllPool",
    "MeanPool",
    "Mlp",
    "Model",
    "MultiBranch",
    "NoHead",
    "NoPosition",
    "Normal",
    "Parallel",
    "Patches",
    "Pooling",
    "Position",
    "PostNorm",
    "PreNorm",
    "ProjectionHead",
    "Relative1d",
    "Relative2d",
    "RelativeBias",
    "RelativeMlp",
    "ResidualPostNorm",
    "Resnet",
    "RmsNorm",
    "Rope2d",
    "RopeAxial",
    "RopeMixed",
    "SinCos1d",
    "SinCos2d",
    "SwiGlu",
    "TanhHead",
    "TokenMlp",
    "Tokens",
    "VisionTransformer",
    "Vit",
    "Zeros",
    "attention_maps",
    "attention_weights",
    "model_config",
]
