"""The plain ViTs of transformers from small random configs, in folders that `save_pretrained` writes.

In: every family whose image encoder is a ViT over one image: patches, a sequence of identical layers, a norm.
Out, and why:
  windows or stages   swin, hiera, mvit, pvt, sam, sam2, sam3, vitdet, vitmatte, focalnet, groupvit, donut
  video or 3-D        videomae, vivit, timesformer, vjepa2, videoprism, videomt, x_clip, tvp
  packed sequences    pixtral, idefics2, idefics3, smolvlm, qwen2_vl and later, kimi, glm4v, llama4, mllama, gemma4
  text in the tokens  vilt, bridgetower, layoutlmv3, perceiver, udop, visual_bert
  two images          seggpt
  queries inside      eomt, eomt_dinov3 (their layers run on queries too), kosmos2_5, pix2struct
  a wrapper           depth_anything, zoedepth, upernet, timm_wrapper, chmv2, vitpose (its backbone is in)
  same class as CLIP  clipseg, altclip, chinese_clip: in, since their folders have another model_type
"""

import inspect
import os
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from benchmarks.zoo.judge import Answers, Subject, float64
from benchmarks.zoo.random_weights import random_images, randomize, seed_of

GROUPS = ("transformers", "transformers-more")  # families that people fine-tune; towers of larger models
WAYS = ("hub",)
SIDE, PATCH = 32, 8
NATIVE, WIDER = (SIDE, SIDE), (SIDE, SIDE + 2 * PATCH)
PLAIN: dict[str, Any] = {"hidden_size": 64, "num_hidden_layers": 3, "num_attention_heads": 4}
PLAIN |= {"image_size": SIDE, "patch_size": PATCH}
SMALL, RATIO = PLAIN | {"intermediate_size": 96}, PLAIN | {"mlp_ratio": 2}
TEXT = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 99}
LABELS = {"num_labels": 7}
NORMS = ("layernorm", "post_layernorm", "norm", "pooler.layernorm", "rms_norm", "layer_norm")
ACTIVATIONS = ("gelu_new", "gelu_fast", "gelu_pytorch_tanh", "gelu_accurate", "gelu_10", "quick_gelu", "relu", "relu2",
               "relu6", "leaky_relu", "silu", "mish", "hardswish", "tanh", "sigmoid", "laplace")  # fmt: skip


Call = Callable[[Any, Tensor, bool], Any]  # the output of a model for images, and whether they have another size


def call(model: Any, images: Tensor, other: bool) -> Any:
    """Positions are resampled where the class takes the request."""
    told = other and "interpolate_pos_encoding" in inspect.signature(model.forward).parameters
    return model(pixel_values=images, **({"interpolate_pos_encoding": True} if told else {}))


def call_resampling(model: Any, images: Tensor, other: bool) -> Any:
    """For classes that pass the request on without naming it."""
    return model(pixel_values=images, interpolate_pos_encoding=other)


def call_unmasked(model: Any, images: Tensor, other: bool) -> Any:
    """MAE with every patch in its place."""
    count = images.shape[-2] * images.shape[-1] // PATCH**2
    noise = torch.arange(count, dtype=images.dtype)[None]  # (1, N), kept in this order
    return model(images, noise=noise, interpolate_pos_encoding=other)


def call_patches(model: Any, images: Tensor, other: bool) -> Any:
    """SigLIP 2 takes the pixels of patches, channels last."""
    rows, columns = (side // PATCH for side in images.shape[-2:])
    patches = images.unflatten(3, (columns, PATCH)).unflatten(2, (rows, PATCH))  # (B, C, rows, P, columns, P)
    pixels = patches.permute(0, 2, 4, 3, 5, 1).flatten(3).flatten(1, 2)  # (B, N, P P C)
    mask = torch.ones(pixels.shape[:2], dtype=torch.long)
    return model(pixel_values=pixels, pixel_attention_mask=mask, spatial_shapes=torch.tensor([[rows, columns]]))


def call_image_features(model: Any, images: Tensor, other: bool) -> Any:
    """The image side of a model of images and texts."""
    return model.get_image_features(images, interpolate_pos_encoding=other)


def registers_first(count: int) -> Callable[[Tensor], Tensor]:
    """Tokens that the library appends, in our order: class, registers, patches."""
    return lambda tokens: torch.cat([tokens[:, :1], tokens[:, -count:], tokens[:, 1:-count]], dim=1)


class Case(NamedTuple):
    """A class of transformers, its config, and how it is asked."""

    model: str
    config: str
    settings: Mapping[str, Any]
    vision: str = ""  # the part whose last hidden state are the tokens; empty for the model itself
    call: Call = call
    order: Callable[[Tensor], Tensor] = lambda tokens: tokens
    arguments: Mapping[str, Any] = {}  # of the class
    native: tuple[int, int] = NATIVE
    pooled: bool = True  # whether something reads its pooled output


def pair(settings: Mapping[str, Any], text: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a model of images and texts."""
    return {"vision_config": dict(settings), "text_config": dict(text)}


def clip_cases(prefix: str, name: str, text: Mapping[str, Any]) -> dict[str, Case]:
    settings = SMALL | {"projection_dim": 40}
    both = pair(settings, text) | {"projection_dim": 40}
    config = f"{prefix}VisionConfig"
    return {
        f"{name}_vision": Case(f"{prefix}VisionModel", config, settings, call=call_resampling),
        f"{name}_projection": Case(
            f"{prefix}VisionModelWithProjection", config, settings, "vision_model", call_resampling
        ),
        f"{name}_both": Case(f"{prefix}Model", f"{prefix}Config", both, "vision_model", call_image_features),
        f"{name}_classify": Case(
            f"{prefix}ForImageClassification", f"{prefix}Config", both | LABELS, "vision_model", call_resampling
        ),
    }


def beit_cases(prefix: str, name: str) -> dict[str, Case]:
    positions: dict[str, dict[str, Any]] = {
        "absolute": {"use_absolute_position_embeddings": True},
        "shared": {"use_shared_relative_position_bias": True},
        "relative": {"use_relative_position_bias": True},
        "mask": {"use_absolute_position_embeddings": True, "use_mask_token": True},
        "class": {"use_relative_position_bias": True, "use_mean_pooling": False},
        "no_scale": {"use_relative_position_bias": True, "layer_scale_init_value": 0.0},
    }
    found = {}
    for how, more in positions.items():
        settings = SMALL | more
        found[f"{name}_{how}"] = Case(f"{prefix}Model", f"{prefix}Config", settings)
        label = Case(f"{prefix}ForImageClassification", f"{prefix}Config", settings | LABELS, name)
        found[f"{name}_{how}_classify"] = label._replace(vision="data2vec_vision" if "2" in name else "beit")
    return found


def vit_cases() -> dict[str, Case]:
    found = {
        "vit": Case("ViTModel", "ViTConfig", SMALL, arguments={"add_pooling_layer": False}),
        "vit_pooler": Case("ViTModel", "ViTConfig", SMALL),
        "vit_pooler_relu": Case("ViTModel", "ViTConfig", SMALL | {"pooler_act": "relu", "pooler_output_size": 48}),
        "vit_no_qkv_bias": Case("ViTForImageClassification", "ViTConfig", SMALL | LABELS | {"qkv_bias": False}, "vit"),
        "vit_classify": Case("ViTForImageClassification", "ViTConfig", SMALL | LABELS, "vit"),
        "vit_masked_image": Case("ViTForMaskedImageModeling", "ViTConfig", SMALL | {"encoder_stride": PATCH}, "vit"),
        "vit_wide_image": Case(
            "ViTForImageClassification", "ViTConfig", SMALL | LABELS | {"image_size": list(WIDER)}, "vit", native=WIDER
        ),
    }
    for activation in ACTIVATIONS:
        settings = SMALL | LABELS | {"hidden_act": activation}
        found[f"vit_{activation}"] = Case("ViTForImageClassification", "ViTConfig", settings, "vit")
    return found


def dino_cases() -> dict[str, Case]:
    two, four = RATIO, PLAIN | {"mlp_ratio": 2, "num_register_tokens": 3}
    three = SMALL | {"num_register_tokens": 2}
    registers, rope = "Dinov2WithRegisters", "DINOv3ViTConfig"
    return {
        "dinov2": Case("Dinov2Model", "Dinov2Config", two),
        "dinov2_classify": Case("Dinov2ForImageClassification", "Dinov2Config", two | LABELS, "dinov2"),
        "dinov2_swiglu": Case("Dinov2Model", "Dinov2Config", two | {"use_swiglu_ffn": True}),
        "dinov2_backbone": Case("Dinov2Backbone", "Dinov2Config", two),
        "dinov2_registers": Case(f"{registers}Model", f"{registers}Config", four),
        "dinov2_registers_classify": Case(
            f"{registers}ForImageClassification", f"{registers}Config", four | LABELS, "dinov2_with_registers"
        ),
        "dinov2_registers_swiglu": Case(f"{registers}Model", f"{registers}Config", four | {"use_swiglu_ffn": True}),
        "dinov3": Case("DINOv3ViTModel", rope, three),
        "dinov3_key_bias": Case("DINOv3ViTModel", rope, three | {"key_bias": True, "mlp_bias": False}),
        "dinov3_gated_silu": Case("DINOv3ViTModel", rope, three | {"use_gated_mlp": True, "hidden_act": "silu"}),
        "dinov3_gated_gelu": Case("DINOv3ViTModel", rope, three | {"use_gated_mlp": True, "hidden_act": "gelu"}),
        "dinov3_relu": Case("DINOv3ViTModel", rope, three | {"hidden_act": "relu"}),
    }


def deit_cases() -> dict[str, Case]:
    return {
        "deit": Case("DeiTModel", "DeiTConfig", SMALL, arguments={"add_pooling_layer": False}),
        "deit_pooler": Case("DeiTModel", "DeiTConfig", SMALL),
        "deit_classify": Case("DeiTForImageClassification", "DeiTConfig", SMALL | LABELS, "deit"),
        "deit_teacher": Case("DeiTForImageClassificationWithTeacher", "DeiTConfig", SMALL | LABELS, "deit"),
        "deit_relu": Case("DeiTForImageClassification", "DeiTConfig", SMALL | LABELS | {"hidden_act": "relu"}, "deit"),
    }


def siglip_cases() -> dict[str, Case]:
    text, no_size = TEXT | {"max_position_embeddings": 16}, dict(SMALL)
    del no_size["image_size"]
    two = no_size | {"num_patches": (SIDE // PATCH) ** 2}
    return {
        "siglip_vision": Case("SiglipVisionModel", "SiglipVisionConfig", SMALL, call=call_resampling),
        "siglip_no_head": Case(
            "SiglipVisionModel", "SiglipVisionConfig", SMALL | {"vision_use_head": False}, call=call_resampling
        ),
        "siglip_both": Case("SiglipModel", "SiglipConfig", pair(SMALL, text), "vision_model", call_image_features),
        "siglip_classify": Case(
            "SiglipForImageClassification", "SiglipConfig", pair(SMALL, text) | LABELS, "vision_model", call_resampling
        ),
        "siglip2_vision": Case("Siglip2VisionModel", "Siglip2VisionConfig", two, call=call_patches),
        "siglip2_classify": Case(
            "Siglip2ForImageClassification", "Siglip2Config", pair(two, text) | LABELS, "vision_model", call_patches
        ),
    }


def other_cases() -> dict[str, Case]:
    mae = SMALL | {"decoder_num_attention_heads": 4, "decoder_hidden_size": 32, "decoder_num_hidden_layers": 1}
    mae |= {"decoder_intermediate_size": 64, "mask_ratio": 0.0}
    yolos = SMALL | {"num_detection_tokens": 5, "image_size": [SIDE, SIDE]}
    middle = {"use_mid_position_embeddings": True}
    dpt = SMALL | {"num_hidden_layers": 4, "backbone_out_indices": [0, 1, 2, 3], "neck_hidden_sizes": [8, 8, 8, 8]}
    dpt |= {"fusion_hidden_size": 8}
    return {
        "vit_msn": Case("ViTMSNModel", "ViTMSNConfig", SMALL),
        "vit_msn_classify": Case("ViTMSNForImageClassification", "ViTMSNConfig", SMALL | LABELS, "vit"),
        "vit_mae": Case("ViTMAEModel", "ViTMAEConfig", mae, call=call_unmasked),
        "vit_mae_pretraining": Case("ViTMAEForPreTraining", "ViTMAEConfig", mae, "vit", call_unmasked),
        "ijepa": Case("IJepaModel", "IJepaConfig", SMALL),
        "ijepa_classify": Case("IJepaForImageClassification", "IJepaConfig", SMALL | LABELS, "ijepa"),
        "aimv2_vision": Case("Aimv2VisionModel", "Aimv2VisionConfig", SMALL),
        "aimv2_no_head": Case("Aimv2VisionModel", "Aimv2VisionConfig", SMALL | {"use_head": False}),
        "aimv2_native": Case("Aimv2VisionModel", "Aimv2VisionConfig", SMALL | {"is_native": True}),
        "aimv2_biases": Case("Aimv2VisionModel", "Aimv2VisionConfig", SMALL | {"qkv_bias": True, "mlp_bias": True}),
        "yolos": Case(
            "YolosModel", "YolosConfig", yolos | {"use_mid_position_embeddings": False}, order=registers_first(5)
        ),
        "yolos_middle": Case("YolosModel", "YolosConfig", yolos | middle, order=registers_first(5)),
        "yolos_detection": Case(
            "YolosForObjectDetection", "YolosConfig", yolos | middle, "vit", order=registers_first(5)
        ),
        "dpt": Case("DPTModel", "DPTConfig", dpt),
        "dpt_depth": Case("DPTForDepthEstimation", "DPTConfig", dpt, "dpt"),
    }


def more_cases() -> dict[str, Case]:
    return {
        "sapiens2": Case("Sapiens2Model", "Sapiens2Config", SMALL | {"num_register_tokens": 2}),
        "pixio": Case("PixioModel", "PixioConfig", RATIO | {"n_cls_tokens": 3}),
        "radio": Case(
            "RadioModel",
            "RadioConfig",
            PLAIN | {"mlp_ratio": 2.0} | {"max_img_size": 64, "num_cls_tokens": 2, "num_registers": 3},
        ),
        "tipsv2_swiglu": Case("Tipsv2VisionModel", "Tipsv2VisionConfig", RATIO | {"use_swiglu_ffn": True}),
        "tipsv2_vision": Case("Tipsv2VisionModel", "Tipsv2VisionConfig", RATIO | {"num_register_tokens": 1}),
        "mlcd_vision": Case("MLCDVisionModel", "MLCDVisionConfig", SMALL),
        "internvl_vision": Case(
            "InternVLVisionModel",
            "InternVLVisionConfig",
            SMALL | {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        ),
        "internvl_qk_norm": Case(
            "InternVLVisionModel",
            "InternVLVisionConfig",
            SMALL
            | {"image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH], "use_qk_norm": True, "norm_type": "rms_norm"},
        ),
        "janus_vision": Case("JanusVisionModel", "JanusVisionConfig", PLAIN | {"mlp_ratio": 2.0}, pooled=False),
        "blip_vision": Case("BlipVisionModel", "BlipVisionConfig", SMALL),
        "blip_2_vision": Case("Blip2VisionModel", "Blip2VisionConfig", SMALL),
        "instructblip_vision": Case("InstructBlipVisionModel", "InstructBlipVisionConfig", SMALL),
        "flava_image": Case("FlavaImageModel", "FlavaImageConfig", SMALL),
        "git_vision": Case("GitVisionModel", "GitVisionConfig", SMALL),
        "owlvit_vision": Case("OwlViTVisionModel", "OwlViTVisionConfig", SMALL, "vision_model"),
        "owlv2_vision": Case("Owlv2VisionModel", "Owlv2VisionConfig", SMALL, "vision_model"),
        "altclip_vision": Case("AltCLIPVisionModel", "AltCLIPVisionConfig", SMALL),
        "chinese_clip_vision": Case("ChineseCLIPVisionModel", "ChineseCLIPVisionConfig", SMALL),
        "clipseg_vision": Case("CLIPSegVisionModel", "CLIPSegVisionConfig", SMALL),
        "vitpose_backbone": Case(
            "VitPoseBackbone",
            "VitPoseBackboneConfig",
            PLAIN | {"mlp_ratio": 2, "image_size": [SIDE, SIDE], "patch_size": [PATCH, PATCH]},
        ),
        "mgp_str": Case("MgpstrModel", "MgpstrConfig", PLAIN | {"image_size": [SIDE, SIDE], "mlp_ratio": 2.0}),
    }


def cases() -> dict[str, Case]:
    clip_text = TEXT | {"max_position_embeddings": 16, "projection_dim": 40, "eos_token_id": 2}
    return {
        **vit_cases(),
        **deit_cases(),
        **beit_cases("Beit", "beit"),
        **beit_cases("Data2VecVision", "data2vec"),
        **dino_cases(),
        **clip_cases("CLIP", "clip", clip_text),
        **clip_cases("MetaClip2", "metaclip2", clip_text),
        **siglip_cases(),
        **other_cases(),
        **more_cases(),
    }


def names(group: str) -> list[str]:
    return [name for name in cases() if (name in more_cases()) == (group == GROUPS[1])]


def make(group: str, name: str, folder: Path) -> Subject:
    """Write a random model in transformers' way and ask transformers what it answers."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    library, case = import_module("transformers"), cases()[name]
    library.utils.logging.disable_progress_bar()

    def build() -> Any:
        config = getattr(library, case.config)(**case.settings)  # saving writes float32 into a config
        return getattr(library, case.model)(config, **case.arguments).eval()

    model = build()
    randomize(model, seed_of(name))
    model.save_pretrained(folder)
    written = model.state_dict()
    read = type(model).from_pretrained(folder, **case.arguments).state_dict()
    assert all(torch.equal(written[key], read[key]) for key in written), (
        "transformers reads other weights than it wrote"
    )
    with float64():
        wide = build()
        wide.load_state_dict(written)
        answers, notes = ask(wide, case, seed_of(name))
    return Subject({"hub": (folder, {})}, answers, notes)


def ask(model: Any, case: Case, seed: int, wider: tuple[int, int] = WIDER) -> tuple[list[Answers], tuple[str, ...]]:
    """What transformers answers at the native size and at another; one of the two is not square."""
    notes = []
    answers = [answer(model, case, random_images(case.native, seed), other=False)]
    try:
        answers.append(answer(model, case, random_images(NATIVE if case.native == WIDER else wider, seed), other=True))
    except (ValueError, RuntimeError, TypeError, AssertionError) as error:
        notes.append(f"one size only: transformers cannot run another: {str(error).splitlines()[0][:100]}")
    if answers[0].logits is None:
        notes.append("tokens only: transformers has no pool here")
    return answers, tuple(notes)


def answer(model: Any, case: Case, images: Tensor, other: bool) -> Answers:
    """The library's tokens in our order, by every definition that it has, and its logits or pooled features."""
    vision = model.get_submodule(case.vision)
    norms = {path: part for path in NORMS if (part := _part(vision, path)) is not None}
    caught: dict[str, Any] = {}

    def keep(name: str, found: Any) -> None:
        caught[name] = found

    hooks = [vision.register_forward_hook(lambda part, given, found: keep("output", found))]
    for path, part in norms.items():
        hooks.append(part.register_forward_pre_hook(lambda part, given, path=path: keep(path, given[0])))
    output = case.call(model, images, other)
    for hook in hooks:
        hook.remove()
    inner = caught.get("output", output)
    last = getattr(inner, "last_hidden_state", None)
    if last is None:  # a backbone, which makes maps of the tokens
        last = next(caught[path] for path in norms if path in caught)
    definitions = {"as transformers returns them": case.order(last)}
    for path, part in norms.items():
        given = caught.get(path)
        if isinstance(given, Tensor) and given.shape == last.shape:
            definitions[f"before {path}"] = case.order(given)
        definitions[f"after {path}"] = case.order(part(last))
    return Answers(images, definitions, pooled(output) if case.pooled else None)


def pooled(output: Any) -> Tensor | None:
    """Logits, or the embedding of the image, or the pooler's output."""
    if isinstance(output, Tensor):
        return output
    for name in ("logits", "image_embeds", "pooler_output"):
        found = getattr(output, name, None)
        if isinstance(found, Tensor) and found.ndim == 2:
            return found
    return None


def _part(model: nn.Module, path: str) -> nn.Module | None:
    try:
        return model.get_submodule(path)
    except AttributeError:
        return None
