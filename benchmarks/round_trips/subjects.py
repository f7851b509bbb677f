"""Small models with random weights, such that every format holds at least one of them as it is."""

from functools import cached_property
from typing import Any

import torch

from benchmarks.zoo.random_weights import randomize, seed_of
from vitral.core.config import Size
from vitral.data.decoding.header import Decoding
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, PreNorm
from vitral.models.embed import Hybrid, OverlappingPatches, Patches
from vitral.models.head import DistilledHead, LinearHead, NoHead, ProjectionHead, TanhHead
from vitral.models.mlp import Mlp, SwiGlu
from vitral.models.norm import RmsNorm
from vitral.models.pool import AttentionPool, ClassMeanPool, ClassPool, DistilledPool, MeanPool, PrefixPool
from vitral.models.position import Learned1d, RelativeBias, Rope2d, RopeCls, SinCos2d
from vitral.models.vit import Tokens, Vit
from vitral.weights.bundle import Bundle
from vitral.weights.load import LoadedModel

WIDTH, HEADS, CLASSES = 48, 3, ("cat", "dog", "Ünlü", "a|b")
PATCH = Size(8, 8)
NO_KEY_BIAS, NO_OUTPUT_BIAS, ONE_LAST_NORM = "no key bias", "no output bias", "one last norm"
NO_MLP_SCALE, NO_LAST_PIXELS = "no scale of the MLP", "no last rows and columns of the kernel"


class Subject:
    """A model by a short name, and what its weights have in common with all that its format holds."""

    def __init__(self, name: str, special: str = "", **fields: Any) -> None:
        self.name, self.special = name, special
        base: dict[str, Any] = {
            "image_size": Size(32, 32),
            "width": WIDTH,
            "depth": 2,
            "stem": Patches(patch=PATCH),
            "mixer": Attention(heads=HEADS),
            "mlp": Mlp(activation="gelu"),
            "head": LinearHead(num_classes=len(CLASSES)),
        }
        self.model = Vit(**(base | fields))

    @cached_property
    def _loaded(self) -> LoadedModel:
        model, headed = self.model.build(), not isinstance(self.model.head, NoHead)
        randomize(model, seed_of(self.name))
        own = model.state_dict()
        for name, tensor in own.items():
            if self.special == NO_KEY_BIAS and name.endswith("heads.qkv.bias"):
                tensor.chunk(3)[1].zero_()
            if self.special == NO_OUTPUT_BIAS and name.endswith("mixer.project.bias"):
                tensor.zero_()
            if self.special == NO_MLP_SCALE and name.endswith("mlp_branch.scale.factor"):
                tensor.fill_(1.0)
            if self.special == NO_LAST_PIXELS and name == "stem.project.weight":
                tensor[..., PATCH.height :, :] = 0
                tensor[..., PATCH.width :] = 0
            if self.special == ONE_LAST_NORM and name.startswith("pool.norm."):
                tensor.copy_(own[name.removeprefix("pool.")])
        preprocessing = Preprocessing(image_size=self.model.image_size, decoding=Decoding(channels=self.model.channels))
        task: Any = "classify" if headed else "features"
        bundle = Bundle(model=self.model, task=task, preprocessing=preprocessing, classes=CLASSES if headed else ())
        return LoadedModel(model.eval(), bundle)

    def loaded(self) -> LoadedModel:
        """The model with its weights, always the same."""
        with torch.no_grad():
            return self._loaded


def learned(resampling: Any, **fields: Any) -> Learned1d:
    return Learned1d(resampling=resampling, **fields)


NO_CLASS, SCALED = Tokens(cls=False), PreNorm(scale=LayerScale(init=1.0))
TANH, QUICK = Mlp(activation="gelu_tanh"), Mlp(activation="quick_gelu")
HF, TIMM, OFFSET = learned("bicubic"), learned("bicubic_antialias"), learned("bicubic_offset")
GATED = SwiGlu(ratio=128 / WIDTH)
CROPPED, BOTH = Patches(patch=PATCH, remainder="crop"), Patches(patch=PATCH, norm="both")
UNBIASED = Patches(patch=PATCH, bias=False)
PYTORCH = Attention(heads=HEADS, head_width=WIDTH // HEADS, qkv_bias=False)
SUBJECTS = (
    # The paper's model in the words of each library.
    Subject("plain-google", mlp=TANH),
    Subject("plain-timm", position=TIMM),
    Subject("plain-hf", position=HF, eps=1e-12),
    Subject("plain-tanh-hf", position=HF, mlp=TANH, eps=1e-12),
    Subject("plain-torchvision", position=learned("bicubic_corners")),
    Subject("features", position=HF, head=NoHead()),
    Subject("features-dino", position=OFFSET, head=NoHead(), stem=CROPPED),
    Subject("features-dpt", position=learned("bilinear_centers"), head=NoHead()),
    Subject("hidden-head", mlp=TANH, head=TanhHead(num_classes=4, hidden=20)),
    Subject("pooler", position=HF, head=ProjectionHead(width=20, bias=True, activation="tanh")),
    # Other pools and tokens.
    Subject("class-without-row", mlp=TANH, position=Learned1d(cls=False)),
    Subject("class-without-row-timm", position=learned("bicubic_antialias", cls=False)),
    Subject("mean-google", mlp=TANH, tokens=NO_CLASS, pool=MeanPool(), position=Learned1d(cls=False)),
    Subject("mean-timm", position=TIMM, pool=MeanPool(norm="after")),
    Subject("mean-hf", position=learned("bicubic", cls=False), tokens=NO_CLASS, pool=MeanPool()),
    Subject("attention-pool", mlp=TANH, tokens=NO_CLASS, pool=AttentionPool(), position=Learned1d(cls=False)),
    Subject(
        "attention-pool-hf",
        mlp=TANH,
        tokens=NO_CLASS,
        pool=AttentionPool(),
        position=learned("bicubic", cls=False),
        head=NoHead(),
    ),
    Subject(
        "attention-pool-naflex",
        mlp=TANH,
        tokens=NO_CLASS,
        pool=AttentionPool(),
        position=learned("bilinear_antialias", cls=False),
        head=NoHead(),
    ),
    Subject("sines", mlp=TANH, tokens=NO_CLASS, pool=MeanPool(), position=SinCos2d()),
    Subject(
        "distilled",
        position=learned("bicubic", register_rows=True),
        tokens=Tokens(registers=1),
        pool=DistilledPool(),
        head=DistilledHead(num_classes=4),
        eps=1e-12,
    ),
    Subject(
        "distilled-timm",
        position=learned("bicubic_antialias", register_rows=True),
        tokens=Tokens(registers=1),
        pool=DistilledPool(),
        head=DistilledHead(num_classes=4),
    ),
    Subject(
        "registers-with-rows", position=learned("bicubic_antialias", register_rows=True), tokens=Tokens(registers=4)
    ),
    Subject("registers", position=TIMM, tokens=Tokens(registers=4), block=SCALED, head=NoHead()),
    Subject(
        "registers-timm", position=learned("bicubic_antialias", cls=False), tokens=Tokens(registers=4), block=SCALED
    ),
    Subject(
        "registers-tips",
        position=learned("bilinear_antialias"),
        tokens=Tokens(registers=2),
        block=SCALED,
        head=NoHead(),
    ),
    Subject(
        "detection-tokens",
        position=learned("bicubic", register_rows=True),
        tokens=Tokens(registers=5),
        head=NoHead(),
        eps=1e-12,
    ),
    # Other stems, layers and positions.
    Subject("hybrid-google", mlp=TANH, stem=Hybrid(layers=(1, 1), root=32)),
    Subject("hybrid-root", mlp=TANH, stem=Hybrid(layers=(), root=64, patch=Size(2, 2))),
    Subject("hybrid-r26", mlp=TANH, stem=Hybrid(layers=(2, 2, 2, 2), root=64), image_size=Size(64, 64)),
    Subject(
        "hybrid-timm",
        position=TIMM,
        mlp=TANH,
        stem=Hybrid(layers=(), root=64, patch=Size(2, 2), standardization="variance", group_eps=1e-5),
    ),
    Subject("scaled", position=HF, block=SCALED, head=NoHead()),
    Subject("scaled-facebook", position=OFFSET, block=SCALED, head=NoHead()),
    Subject("scaled-ibot", position=OFFSET, block=SCALED, head=NoHead(), stem=CROPPED),
    Subject("scaled-head", position=HF, block=SCALED, pool=ClassMeanPool()),
    Subject("gated", position=HF, block=SCALED, mlp=GATED, head=NoHead()),
    Subject("gated-facebook", position=OFFSET, block=SCALED, mlp=SwiGlu(ratio=128 / WIDTH, multiple=1), head=NoHead()),
    Subject(
        "rope",
        special=NO_KEY_BIAS,
        position=Rope2d(),
        tokens=Tokens(registers=4),
        block=SCALED,
        head=NoHead(),
        eps=1e-5,
    ),
    Subject(
        "rope-gated",
        special=NO_KEY_BIAS,
        position=Rope2d(),
        tokens=Tokens(registers=4),
        block=SCALED,
        mlp=GATED,
        head=NoHead(),
        eps=1e-5,
    ),
    Subject(
        "rope-facebook",
        special=NO_KEY_BIAS,
        position=Rope2d(),
        tokens=Tokens(registers=4),
        stem=CROPPED,
        block=SCALED,
        head=NoHead(),
        eps=1e-5,
    ),
    Subject("clip", position=HF, tokens=Tokens(norm=True), stem=UNBIASED, mlp=QUICK, head=NoHead(), eps=1e-5),
    Subject(
        "clip-projection",
        position=HF,
        tokens=Tokens(norm=True),
        stem=UNBIASED,
        mlp=QUICK,
        head=ProjectionHead(width=20),
        eps=1e-5,
    ),
    Subject("clip-timm", position=TIMM, tokens=Tokens(norm=True), stem=UNBIASED, mlp=QUICK, eps=1e-5),
    Subject(
        "clip-open",
        position=TIMM,
        tokens=Tokens(norm=True),
        stem=Patches(patch=PATCH, bias=False, remainder="crop"),
        mlp=QUICK,
        head=ProjectionHead(width=20),
        eps=1e-5,
    ),
    Subject(
        "relative-bias",
        special=NO_KEY_BIAS,
        position=RelativeBias(resampling="bilinear_centers"),
        block=SCALED,
        pool=MeanPool(norm="after"),
        eps=1e-12,
    ),
    Subject(
        "relative-bias-timm",
        special=NO_KEY_BIAS,
        position=RelativeBias(resampling="geometric"),
        block=SCALED,
        pool=MeanPool(norm="after"),
    ),
    Subject("blip", ONE_LAST_NORM, position=HF, pool=ClassPool(norm="both"), head=NoHead(), eps=1e-5),
    Subject("unnormed-mean", position=HF, block=SCALED, pool=MeanPool(norm="none"), head=NoHead()),
    Subject(
        "rms",
        position=learned("bicubic", cls=False),
        tokens=NO_CLASS,
        stem=Patches(patch=PATCH, norm="after"),
        norm=RmsNorm(),
        mixer=Attention(heads=HEADS, qkv_bias=False, project_bias=False),
        mlp=SwiGlu(ratio=128 / WIDTH, bias=False),
        pool=MeanPool(),
        head=NoHead(),
        eps=1e-5,
    ),
    # Towers of larger models.
    Subject("mean-features", position=learned("bicubic", cls=False), tokens=NO_CLASS, pool=MeanPool(), head=NoHead()),
    Subject("unnormed-class", position=HF, pool=ClassPool(norm="none"), head=NoHead(), eps=1e-5),
    Subject(
        "several-class-tokens",
        position=learned("bicubic", register_rows=True),
        tokens=Tokens(registers=2),
        pool=PrefixPool(),
        head=NoHead(),
    ),
    Subject(
        "rope-rms",
        special=NO_MLP_SCALE,
        position=Rope2d(),
        tokens=Tokens(registers=4),
        block=SCALED,
        norm=RmsNorm(),
        mixer=Attention(heads=HEADS, qk_norm=True),
        mlp=GATED,
        head=NoHead(),
    ),
    Subject("rope-cls", position=RopeCls(), tokens=Tokens(norm=True), stem=UNBIASED, head=NoHead(), eps=1e-5),
    Subject(
        "margin",
        special=NO_LAST_PIXELS,
        position=learned("bicubic", cls=False),
        tokens=NO_CLASS,
        stem=OverlappingPatches(patch=Size(PATCH.height + 4, PATCH.width + 4), stride=PATCH),
        pool=MeanPool(),
        head=NoHead(),
        eps=1e-12,
    ),
    # The small libraries.
    Subject("vit-pytorch", position=learned("slice"), stem=BOTH, mixer=PYTORCH, eps=1e-5),
    Subject(
        "simple-vit",
        NO_OUTPUT_BIAS,
        position=SinCos2d(),
        tokens=Tokens(cls=False, registers=2),
        stem=BOTH,
        mixer=PYTORCH,
        pool=MeanPool(),
        eps=1e-5,
    ),
    Subject(
        "labml",
        position=learned("slice"),
        stem=CROPPED,
        mlp=Mlp(activation="relu"),
        head=TanhHead(num_classes=4, hidden=20, activation="relu"),
        eps=1e-5,
    ),
)
