"""What Google's .npz files can hold, and how they are written."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from vitral.data.transforms.scaling import CENTRED
from vitral.model.attention import Attention
from vitral.model.block import NoScale, PreNorm
from vitral.model.mlp import Mlp
from vitral.model.patches import Patches
from vitral.model.pool import AttentionPool, ClassPool, MeanPool
from vitral.model.position import Learned1d, SinCos2d
from vitral.model.stem import Hybrid
from vitral.model.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import Format
from vitral.weights.formats.google_rules import BIG_VISION, Names
from vitral.weights.formats.npz import write_npz

EPS = 1e-6  # of every norm


class GoogleFiles(Format):
    """The writing half of Google's formats."""

    library: ClassVar[str] = "google"
    package: ClassVar[str] = "big_vision"  # which is on no index
    names: ClassVar[Names]
    owner: ClassVar[str]

    def without_counterpart(self, bundle: Bundle) -> Iterator[str]:
        model = bundle.model
        if not isinstance(model, Vit):
            yield "kind: Google's files of a ResNet are not written"
            return
        yield from self._stem(model)
        yield from self._places(model)
        yield from self._layers(model)
        yield from self._pool(model)
        if model.eps != EPS:
            yield f"eps: Google's norms have {EPS:g}, this model {model.eps:g}"
        if bundle.preprocessing.scaling != CENTRED:
            yield "preprocessing.scaling: Google's models see pixels from -1 to 1, and their files tell no other scale"

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        return {"model.npz": write_npz(tensors)}

    def code(self, model: Vit) -> Any:
        raise ImportError(f"{self.owner}'s code is no package to install, so there is nothing to compare with")

    def _stem(self, model: Vit) -> Iterator[str]:
        stem = model.stem
        if isinstance(stem, Patches):
            if stem.norm != "none":
                yield "stem.norm: Google's stem has no norm"
            if not stem.bias:
                yield "stem.bias: Google's stem has a bias"
            return
        assert isinstance(stem, Hybrid)
        if self.names is BIG_VISION:
            yield "stem: big_vision has no hybrids"
        if not stem.project:
            yield "stem.project: Google's hybrids map what the ResNet gives to the width"
        if stem.standardisation != "std":
            yield f"stem.standardisation: Google guards a kernel's deviation, this model its {stem.standardisation}"
        if stem.group_eps != EPS:
            yield f"stem.group_eps: Google's norms have {EPS:g}, this model {stem.group_eps:g}"

    def _places(self, model: Vit) -> Iterator[str]:
        position, big_vision = model.position, self.names is BIG_VISION
        if model.tokens.registers:
            yield "tokens.registers: Google's ViT has none"
        if model.tokens.norm:
            yield "tokens.norm: Google's ViT has no norm before its first layer"
        if big_vision and isinstance(position, SinCos2d):
            return
        if not isinstance(position, Learned1d) or position.where != "stem":
            yield f"position: Google's ViT has one learned table at the stem, this model {position.kind}"
            return
        if position.resampling != "bilinear":
            yield f"position.resampling: Google's is bilinear, this model's {position.resampling}"
        if model.tokens.cls and position.cls == big_vision:
            has = "has no row for the class token" if big_vision else "has a row for the class token"
            yield f"position.cls: the table of {self.owner} {has}"

    def _layers(self, model: Vit) -> Iterator[str]:
        mixer = model.mixer
        if not isinstance(model.block, PreNorm):
            yield "block: Google's ViT normalises before each branch"
        if not isinstance(model.block.scale, NoScale):
            yield "block.scale: Google's ViT adds its branches as they are"
        if not isinstance(mixer, Attention):
            yield f"mixer: Google's ViT has attention over all tokens, this model {mixer.kind}"
        else:
            if mixer.width_of_head(model.width) * mixer.heads != model.width or not mixer.project:
                yield "mixer: Google's heads share the width evenly, and are projected"
            if not mixer.qkv_bias:
                yield "mixer.qkv_bias: Google's heads have biases"
            if mixer.qk_norm:
                yield "mixer.qk_norm: Google's heads have no norms"
        if not isinstance(model.mlp, Mlp):
            yield f"mlp: Google's ViT has two layers with GELU between, this model {model.mlp.kind}"
        elif model.mlp.gelu != "tanh":
            yield f"mlp.gelu: Google's is the tanh form, this model's {model.mlp.gelu}"

    def _pool(self, model: Vit) -> Iterator[str]:
        pool, big_vision = model.pool, self.names is BIG_VISION
        if isinstance(pool, AttentionPool) and big_vision:
            if pool.count(model.whole()) != model.whole().heads:
                yield "pool.heads: big_vision gathers with as many heads as the layers have"
        elif not isinstance(pool, ClassPool) and not (isinstance(pool, MeanPool) and not pool.normalises()):
            yield f"pool: {self.owner} reads the class token or the mean of normed patches, this model has {pool.kind}"
        if model.tokens.cls and not isinstance(pool, ClassPool):
            yield "tokens.cls: Google's ViT has a class token only to read it"
