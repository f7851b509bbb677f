"""Our models with other libraries' weights give other libraries' answers."""

import pytest
import torch
from torch import Tensor

from tests.model import references as ref
from vitral.config import Size
from vitral.model import (
    Attention,
    AttentionPool,
    Hybrid,
    LayerScale,
    Learned1d,
    LinearHead,
    MeanPool,
    Mlp,
    NoHead,
    NoPosition,
    Patches,
    PostNorm,
    PreNorm,
    Rope2d,
    SinCos2d,
    SwiGlu,
    Tokens,
    VisionTransformer,
    Vit,
)
from vitral.model.shapes import Grid, Layout
from vitral.model.vit import build_block

TOLERANCE = 1e-5
SQUARE = Size(32, 32)
SCALED = PreNorm(scale=LayerScale())
FIVE = LinearHead(classes=5)


def loaded(config: Vit, weights: ref.Weights) -> VisionTransformer:
    model = config.skeleton()
    model.load(weights)
    return model.eval()


def largest_difference(one: Tensor, other: Tensor) -> float:
    assert one.shape == other.shape
    return float((one - other).abs().max())


@torch.no_grad()
def check(model: VisionTransformer, answers: ref.Weights) -> None:
    """Tokens and logits agree, on images of the model's own size and of another where the library was asked."""
    for size in ("", "_large"):
        if f"images{size}" in answers:
            features = model.features(answers[f"images{size}"])
            tokens = torch.cat(features[:3], dim=1)
            assert largest_difference(tokens, answers[f"tokens{size}"]) <= TOLERANCE
        if f"logits{size}" in answers and not isinstance(model.config.head, NoHead):
            assert largest_difference(model(answers[f"images{size}"]), answers[f"logits{size}"]) <= TOLERANCE


def hugging_face(name: str, depth: int, *tokens: str) -> ref.Reference:
    found = ref.reference(name)
    weights = ref.renamed(found.weights, ref.HUGGING_FACE)
    weights.pop("embeddings.mask_token", None)
    ref.gather_tokens(weights, *(f"embeddings.{token}" for token in tokens))
    ref.flatten_kernel(weights)
    ref.fuse_heads(weights, depth)
    return found._replace(weights=weights)


def small(depth: int = 2, image: Size = SQUARE) -> Vit:
    stem, mixer = Patches(patch=Size(8, 8)), Attention(heads=3)
    return Vit(image=image, width=36, depth=depth, stem=stem, mixer=mixer, head=NoHead())


def changed(config: Vit, **fields: object) -> Vit:
    return Vit(**{**{name: getattr(config, name) for name in Vit.model_fields}, **fields})


def test_hugging_face_vit_agrees() -> None:
    found = hugging_face("hf_vit", 3, "cls_token")
    config = changed(
        small(depth=3),
        mlp=Mlp(ratio=60 / 36, gelu="erf"),
        position=Learned1d(resampling="bicubic"),
        eps=1e-12,
        head=FIVE,
    )
    check(loaded(config, found.weights), found.answers)


def test_hugging_face_dinov2_agrees() -> None:
    found = hugging_face("hf_dinov2", 2, "cls_token")
    config = changed(small(), mlp=Mlp(ratio=3, gelu="erf"), position=Learned1d(resampling="bicubic"), block=SCALED)
    weights = {name: tensor for name, tensor in found.weights.items() if not name.startswith("head.")}
    check(loaded(config, weights), found.answers)


def test_hugging_face_dinov2_with_registers_agrees() -> None:
    found = hugging_face("hf_dinov2_registers", 2, "cls_token", "register_tokens")
    config = changed(
        small(),
        mlp=Mlp(ratio=3, gelu="erf"),
        position=Learned1d(resampling="bicubic_antialias"),
        block=SCALED,
        tokens=Tokens(registers=3),
    )
    check(loaded(config, found.weights), found.answers)


def test_hugging_face_dinov2_with_swiglu_agrees() -> None:
    found = hugging_face("hf_dinov2_swiglu", 2, "cls_token")
    config = changed(
        small(),
        width=40,
        mixer=Attention(heads=4),
        mlp=SwiGlu(),
        position=Learned1d(resampling="bicubic"),
        block=SCALED,
    )
    check(loaded(config, found.weights), found.answers)


def test_hugging_face_dinov3_with_rotary_positions_agrees() -> None:
    found = hugging_face("hf_dinov3", 2, "cls_token", "register_tokens")
    config = changed(
        small(image=Size(32, 48)),
        mlp=Mlp(ratio=80 / 36, gelu="erf"),
        position=Rope2d(),
        block=SCALED,
        tokens=Tokens(registers=3),
        eps=1e-5,
    )
    check(loaded(config, found.weights), found.answers)


def timm(name: str, *tokens: str) -> ref.Reference:
    found = ref.reference(name)
    weights = ref.renamed(found.weights, ref.TIMM)
    if tokens:
        ref.gather_tokens(weights, *tokens)
    ref.flatten_kernel(weights)
    return found._replace(weights=weights)


WIDE = changed(
    small(image=Size(32, 48)),
    mlp=Mlp(ratio=2.5, gelu="erf"),
    position=Learned1d(resampling="bicubic_antialias"),
    head=FIVE,
)


def test_timm_vit_agrees() -> None:
    found = timm("timm_vit", "cls_token")
    check(loaded(WIDE, found.weights), found.answers)


def test_timm_vit_with_mean_pooling_agrees() -> None:
    found = timm("timm_vit_gap")
    check(loaded(changed(WIDE, tokens=Tokens(cls=False), pool=MeanPool()), found.weights), found.answers)


def test_timm_vit_with_registers_scale_and_query_key_norm_agrees() -> None:
    found = timm("timm_vit_registers", "cls_token", "reg_token")
    config = changed(
        WIDE,
        tokens=Tokens(registers=2),
        position=Learned1d(cls=False, resampling="bicubic_antialias"),
        block=SCALED,
        mixer=Attention(heads=3, qk_norm=True),
    )
    check(loaded(config, found.weights), found.answers)


def test_timm_vit_with_attention_pooling_agrees() -> None:
    found = timm("timm_vit_map")
    config = changed(WIDE, mlp=Mlp(ratio=2, gelu="erf"), tokens=Tokens(cls=False), pool=AttentionPool(heads=3))
    check(loaded(config, found.weights), found.answers)


def test_timm_hybrid_of_the_r26_type_agrees() -> None:
    found = timm("timm_hybrid_r26", "cls_token")
    stem = Hybrid(layers=(2, 1), root=32, standardisation="variance", group_eps=1e-5)
    config = changed(WIDE, depth=1, mlp=Mlp(gelu="erf"), stem=stem)
    model = loaded(config, found.weights)
    with torch.no_grad():
        features = model.stem.get_submodule("body")(found.answers["images"])
    assert largest_difference(features, found.answers["features"]) <= TOLERANCE
    check(model, found.answers)


def vit_pytorch(name: str) -> ref.Reference:
    found = ref.reference(name)
    weights = ref.renamed(found.weights, ref.VIT_PYTORCH)
    ref.reorder_pixels(weights, Size(6, 8))
    for layer in range(2):
        weights.setdefault(f"blocks.{layer}.mixer.project.bias", torch.zeros(40))
    if "position.table" in weights:
        weights["position.table"] = weights["position.table"][None]
    return found._replace(weights=weights)


NORMED = Vit(
    image=Size(24, 48),
    width=40,
    depth=2,
    stem=Patches(patch=Size(6, 8), norm="both"),
    mixer=Attention(heads=2, head_width=12, qkv_bias=False),
    mlp=Mlp(ratio=1.8, gelu="erf"),
    head=FIVE,
    eps=1e-5,
)


def test_vit_pytorch_agrees() -> None:
    found = vit_pytorch("vit_pytorch")
    ref.gather_tokens(found.weights, "cls_token")
    check(loaded(NORMED, found.weights), found.answers)


def test_vit_pytorch_with_mean_pooling_agrees() -> None:
    found = vit_pytorch("vit_pytorch_mean")
    assert found.weights.pop("cls_token").numel() == 0
    check(loaded(changed(NORMED, tokens=Tokens(cls=False), pool=MeanPool()), found.weights), found.answers)


def test_simple_vit_with_sines_agrees() -> None:
    found = vit_pytorch("simple_vit")
    config = changed(NORMED, tokens=Tokens(cls=False), pool=MeanPool(), position=SinCos2d())
    check(loaded(config, found.weights), found.answers)


@pytest.mark.parametrize(("name", "order"), [("torch_encoder_pre", PreNorm()), ("torch_encoder_post", PostNorm())])
def test_encoder_layer_of_torch_agrees(name: str, order: PreNorm | PostNorm) -> None:
    found = ref.reference(name)
    config = changed(small(), mlp=Mlp(ratio=80 / 36, gelu="erf"), block=order, position=NoPosition(), eps=1e-5)
    block = build_block(config, config.whole(), layer=0).eval()
    block.load_state_dict(ref.renamed(found.weights, ref.TORCH))
    layout = Layout(cls=1, registers=0, grid=Grid(2, 3))
    with torch.no_grad():
        tokens = block(found.answers["tokens_in"], layout, layout.length())
    assert largest_difference(tokens, found.answers["tokens_out"]) <= TOLERANCE
