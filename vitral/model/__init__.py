"""The model: tensors in, tensors out. It knows no files, no data and no training."""

from vitral.model.attention import Attention, Axial, Local, attention_weights
from vitral.model.bit import Resnet
from vitral.model.block import LayerScale, NoScale, PostNorm, PreNorm
from vitral.model.contract import Model
from vitral.model.head import LinearHead, NoHead, TanhHead
from vitral.model.initial import BigVision, Normal, Original, Zeros
from vitral.model.memory import KeepActivations, Recompute
from vitral.model.mixer import Identity, Pooling, TokenMlp
from vitral.model.mlp import Mlp, SwiGlu
from vitral.model.names import build, model_config
from vitral.model.patches import Patches
from vitral.model.pool import AttentionPool, ClassMeanPool, ClassPool, DistilledPool, MeanAllPool, MeanPool
from vitral.model.position import (
    Learned1d,
    Learned2d,
    NoPosition,
    Relative1d,
    Relative2d,
    Rope2d,
    SinCos1d,
    SinCos2d,
)
from vitral.model.record import attention_maps
from vitral.model.shapes import Features, Grid, Layout
from vitral.model.stem import Hybrid
from vitral.model.vit import Tokens, VisionTransformer, Vit

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
    "Recompute",
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
