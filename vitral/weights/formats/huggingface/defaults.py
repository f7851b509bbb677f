"""The library's defaults of the fields that decide what a model computes: a config.json may omit them."""

from collections.abc import Mapping
from typing import Any

BASE: Mapping[str, Any] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "image_size": 224,
    "patch_size": 16,
    "num_channels": 3,
}
VIT = {**BASE, "intermediate_size": 3072}
BEIT = {**VIT, "layer_scale_init_value": 0.1}
CLIP = {**VIT, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5, "patch_size": 32}
SIGLIP = {**VIT, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-6}
SIGLIP_2 = {name: value for name, value in SIGLIP.items() if name != "image_size"} | {"num_patches": 256}
DINOV2 = {**BASE, "layer_norm_eps": 1e-6, "mlp_ratio": 4}
BLIP_BASE = {name: value for name, value in VIT.items() if name != "num_channels"}  # which its config does not have
BLIP = {**BLIP_BASE, "layer_norm_eps": 1e-5, "image_size": 384}
BLIP_2 = {
    **BLIP_BASE,
    "hidden_size": 1408,
    "num_hidden_layers": 39,
    "num_attention_heads": 16,
    "intermediate_size": 6144,
    "layer_norm_eps": 1e-6,
    "patch_size": 14,
}
# By the model_type of a config.json that describes the vision tower itself, not a model that contains one.
DEFAULTS: Mapping[str, Mapping[str, Any]] = {
    **dict.fromkeys(("vit", "flava_image_model", "deit", "vit_mae", "ijepa"), VIT),
    "vit_msn": {**VIT, "layer_norm_eps": 1e-6},
    "dpt": {**VIT, "image_size": 384},
    "yolos": {**VIT, "image_size": [512, 864], "num_detection_tokens": 100},
    "beit": BEIT,
    "data2vec-vision": BEIT,
    "dinov2": {**DINOV2, "patch_size": 14},
    "dinov2_with_registers": {**DINOV2, "num_register_tokens": 4},
    "tipsv2_vision_model": {**DINOV2, "image_size": 448, "patch_size": 14, "num_register_tokens": 1},
    "dinov3_vit": {
        **VIT,
        "hidden_size": 384,
        "num_attention_heads": 6,
        "intermediate_size": 1536,
        "layer_norm_eps": 1e-5,
        "rope_theta": 100.0,
        "num_register_tokens": 0,
    },
    **dict.fromkeys(
        (
            "clip_vision_model",
            "metaclip_2_vision_model",
            "altclip_vision_model",
            "chinese_clip_vision_model",
            "clipseg_vision_model",
        ),
        CLIP,
    ),
    "git_vision_model": {**CLIP, "patch_size": 16},
    "owlvit_vision_model": {**CLIP, "image_size": 768},
    "owlv2_vision_model": {**CLIP, "image_size": 768, "patch_size": 16},
    "siglip_vision_model": SIGLIP,
    "siglip2_vision_model": SIGLIP_2,
    "blip_vision_model": BLIP,
    "blip_2_vision_model": BLIP_2,
    "instructblip_vision_model": BLIP_2,
    "aimv2_vision_model": {
        "hidden_size": 1024,
        "intermediate_size": 2816,
        "num_hidden_layers": 24,
        "num_attention_heads": 8,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 14,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
    },
    "mlcd_vision_model": {
        **VIT,
        "hidden_size": 1664,
        "num_hidden_layers": 48,
        "num_attention_heads": 16,
        "intermediate_size": 8192,
        "layer_norm_eps": 1e-5,
        "image_size": 336,
        "patch_size": 14,
    },
    "internvl_vision": {
        **VIT,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "intermediate_size": 4096,
        "layer_norm_eps": 1e-6,
        "image_size": [448, 448],
        "patch_size": [14, 14],
        "norm_type": "layer_norm",
        "layer_scale_init_value": 0.1,
    },
    "janus_vision_model": {
        **BASE,
        "hidden_size": 1024,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "layer_norm_eps": 1e-6,
        "image_size": 384,
        "mlp_ratio": 4.0,
    },
    "sapiens2": {
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_channels": 3,
        "image_size": 224,
        "patch_size": 16,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 100.0,
        "num_register_tokens": 8,
    },
    "mgp-str": {
        "hidden_size": 768,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
        "num_channels": 3,
        "image_size": [32, 128],
        "patch_size": 4,
        "layer_norm_eps": 1e-5,
        "mlp_ratio": 4.0,
    },
    "pixio": {
        **BASE,
        "hidden_size": 1280,
        "num_hidden_layers": 32,
        "num_attention_heads": 16,
        "layer_norm_eps": 1e-6,
        "image_size": 256,
        "mlp_ratio": 4,
        "n_cls_tokens": 8,
    },
    "vitpose_backbone": {**BASE, "image_size": [256, 192], "patch_size": [16, 16], "mlp_ratio": 4},
}
