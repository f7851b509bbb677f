"""Models: images in, logits and features out. No files, data or training here."""

# ruff: noqa: F401, the public names of this package

from vitral.models.attention import Attention, Axial, Identity, Local, Pooling, TokenMlp, attention_weights
from vitral.models.base import Features, Grid, Layout, Model
from vitral.models.block import GradientCheckpointing, KeepActivations, LayerScale, PostNorm, PreNorm
from vitral.models.embed import Hybrid, Patches
from vitral.models.head import LinearHead, NoHead, TanhHead
from vitral.models.hooks import attention_maps
from vitral.models.init import BigVision, Normal, Zeros
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.pool import AttentionPool, ClassMeanPool, ClassPool, DistilledPool, MeanAllPool, MeanPool
from vitral.models.position import Learned1d, Learned2d, NoPosition, Relative1d, Relative2d, Rope2d, SinCos1d, SinCos2d
from vitral.models.registry import create_model, model_config
from vitral.models.resnet import Resnet
from vitral.models.vit import Tokens, VisionTransformer, Vit
