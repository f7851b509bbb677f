"""The model: tensors in, tensors out. It knows no files, no data and no training."""

from vitral.models.attention import Attention, Axial, Local, attention_weights
from vitral.models.base import Features, Grid, Layout, Model
from vitral.models.block import GradientCheckpointing, KeepActivations, LayerScale, NoScale, PostNorm, PreNorm
from vitral.models.embed import Hybrid, Patches
from vitral.models.head import LinearHead, NoHead, TanhHead
from vitral.models.hooks import attention_maps
from vitral.models.init import BigVision, Normal, Original, Zeros
from vitral.models.mixers import Identity, Pooling, TokenMlp
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.pool import AttentionPool, ClassMeanPool, ClassPool, DistilledPool, MeanAllPool, MeanPool
from vitral.models.position import (
    Learned1d,
    Learned2d,
    NoPosition,
    Relative1d,
    Relative2d,
    Rope2d,
    SinCos1d,
    SinCos2d,
)
from vitral.models.registry import build, model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Tokens, VisionTransformer, Vit

__all__ = [
    "Attention",
    "AttentionPool",
    "Axial",
    "BigVision",
    "ClassMeanPool",
    "ClassPool",
    "DistilledPool",
    "Features",
    "Grid",
    "Hybrid",
    "Identity",
    "KeepActivations",
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
    "NoHead",
    "NoPosition",
    "NoScale",
    "Normal",
    "Original",
    "Patches",
    "Pooling",
    "PostNorm",
    "PreNorm",
    "GradientCheckpointing",
    "Relative1d",
    "Relative2d",
    "Resnet",
    "Rope2d",
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
    "build",
    "model_config",
]
