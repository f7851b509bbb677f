"""Kinds of models that are no plain Vision Transformer, and how their tensor names show them."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from torch import Tensor

OTHER_MODEL = "give the weights of a plain Vision Transformer"
IMAGE_MODEL = "give an image model"
MERGE = "merge the adapter into its base model, and give the merged weights"
WRAPPER = re.compile(r"^((module|model|_orig_mod|backbone|net)\.)+")  # prefixes that training scripts add
TOWER = "give the vision tower alone, for example with --weights-key and the prefix of its names"


class Finding(NamedTuple):
    """What a file looks like, with the tensor that shows it, and what to do."""

    text: str
    hint: str


class Foreign(NamedTuple):
    """A kind of model that is no plain Vision Transformer, the names that show it, and what to do."""

    title: str
    marks: tuple[str, ...]  # regular expressions, each of which some name matches
    hint: str = OTHER_MODEL


# The first that fits counts. No file of a known format has these marks.
ARCHITECTURES = (
    Foreign("a LoRA adapter", (r"[._]lora_(A|B|up|down)\b",), MERGE),
    Foreign("an adapter", (r"(^|\.)(hada_w1_a|lokr_w1|ia3_l|adapter_(down|up)|prompt_embeddings)\b",), MERGE),
    Foreign("the state of an optimizer", (r"(^|[./])(exp_avg|exp_avg_sq|momentum_buffer)$",), "give the weights"),
    Foreign("a diffusion model", (r"diffusion_model\.|first_stage_model\.|(^|\.)(down_blocks|mid_block)\.",)),
    Foreign("a diffusion transformer", (r"adaLN_modulation|adaln_single|norm1_context\.",)),
    Foreign("a state space model (Mamba)", (r"(mixer|mamba|ssm)\.A(_b)?_log$",)),
    Foreign("MViT", (r"stages\.\d+\.blocks\.\d+\.attn\.(rel_pos_h|pool_[qkv]|norm_k\.)",)),
    Foreign("SAM, with windows and relative positions", (r"attn\.rel_pos_h",)),
    Foreign("a detector of the YOLO series", (r"^model\.\d+\.(m\.\d+\.)?cv\d\.",)),
    Foreign(
        "a detector",
        (r"rpn\.head\.|query_position_embeddings|query_embed\.|roi_heads\.|reference_points\.|enc_bbox_head\.",),
    ),
    Foreign("Mask2Former or MaskFormer, a segmentation model", (r"pixel_level_module\.|mask_embedder\.",)),
    Foreign("Swin Transformer", (r"layers\.\d+\.blocks\.\d+\..*(relative_position_bias_table|cpb_mlp|logit_scale)",)),
    Foreign("CaiT", (r"^blocks_token_only\.",)),
    Foreign("XCiT", (r"^cls_attn_blocks\.|\.local_mp\.",)),
    Foreign("ConViT", (r"\.attn\.gating_param$",)),
    Foreign("FocalNet", (r"\.modulation\.(f|h|proj)\.",)),
    Foreign(
        "a vision tower that merges patches, as in Qwen-VL or MiniCPM-V",
        (r"(^|\.)(merger\.(norm|ln_q|mlp|fc1)|vit_merger\.self_attn)\b",),
    ),
    Foreign("RADIO, which cuts its positions out of a square", (r"patch_generator\.|(^|\.)cls_register_token$",)),
    Foreign("ViTPose with experts", (r"encoder\.layer\.\d+\.mlp\.experts\.",)),
    Foreign("EdgeNeXt", (r"\.conv_dw\.", r"\.xca\.")),
    Foreign("ConvNeXt", (r"stages\.\d+\.(blocks\.\d+\.conv_dw|layers\.\d+\.dwconv)\.|^downsample_layers\.\d",)),
    Foreign(
        "a mobile network such as MobileNet or EfficientNet",
        (r"(^|\.)(blocks|features)\.\d+\.\d+\.(conv_dw|conv_pw|conv\.\d)",),
    ),
    Foreign("RegNet", (r"^s\d\.b\d\.conv1\.|trunk_output\.block",)),
    Foreign("DenseNet", (r"denselayer\d+\.",)),
    Foreign("VGG", (r"^features\.\d+\.weight$", r"^classifier\.\d\.weight$|^pre_logits\.fc1\.")),
    Foreign(
        "a MetaFormer such as PoolFormer or EfficientFormer",
        (r"\.token_mixer\.|\.layer_scale_1$|blocks\.\d+\.layer_scale1\.scale$",),
    ),
    Foreign("LeViT, TinyViT or EfficientViT", (r"\.attention_biases$",)),
    Foreign("MLP-Mixer", (r"\.mlp_tokens\.|token_mixing",)),
    Foreign("CoaT", (r"^serial_blocks\d",)),
    Foreign("TNT", (r"\.attn_in\.|^pixel_embed\.",)),
    Foreign("CrossViT", (r"^patch_embed\.\d+\.proj", r"\.fusion\.")),
    Foreign("Twins", (r"^patch_embeds\.\d+\.proj", r"^pos_block\.")),
    Foreign("PVT", (r"stages\.\d+\.blocks\.\d+\.attn\.kv\.|^block\d\.\d+\.attn\.(kv|sr)\.",)),
    Foreign("SegFormer, GLPN or PVT", (r"patch_embeddings\.\d+\.(proj|layer_norm)",)),
    Foreign("MaxViT or CoAtNet", (r"stages\.\d+\.blocks\.\d+\.(attn_block|conv)\.(attn|conv1_1x1|norm)",)),
    Foreign("CvT", (r"attention\.convolution_projection_",)),
    Foreign("PiT", (r"^transformers\.\d+\.blocks\.|^layers\.\d+\.cls_ff\.",)),
    Foreign("Hiera", (r"^blocks\.\d+\.proj\.", r"^pos_embed_window$|^blocks\.\d+\.attn\.qkv")),
    Foreign("NaViT", (r"^pos_embed_height$|^attn_pool_queries$",)),
    Foreign("CCT, with a convolutional tokenizer", (r"^tokenizer\.conv_layers\.",)),
    Foreign(
        "a hybrid of timm with a ResNet-D before its blocks: vit_small_resnet26d_224, vit_small_resnet50d_s16_224, "
        "vit_base_resnet26d_224 or vit_base_resnet50d_224",
        (r"^patch_embed\.backbone\.layer1\.\d+\.conv1\.", r"^blocks\.\d+\.attn\."),
        "give a hybrid of the paper, such as vit_small_r26_s32_224, or a plain Vision Transformer",
    ),
    Foreign(
        "ResNet or a relative of it", (r"(^|\.)layer[1-4]\.\d+\.conv\d\.|stages\.\d+\.layers\.\d+\.(layer|shortcut)\.",)
    ),
    Foreign("Whisper, a speech model", (r"encoder\.conv1\.weight", r"decoder\.embed_tokens"), IMAGE_MODEL),
    Foreign("a speech model (wav2vec 2.0)", (r"feature_extractor\.conv_layers",), IMAGE_MODEL),
    Foreign("a model of images and text in one encoder (ViLT)", (r"text_embeddings\.", r"patch_embeddings\.")),
)
# Known files may have these marks, such as those of a text tower: they count only if no format fits the names.
OTHERS = (
    Foreign(
        "a model of images and text",
        (r"vision|visual|image|patch", r"embed_tokens\.|lm_head\.|wte\.|word_embeddings\.|token_embedding\."),
        TOWER,
    ),
    Foreign("T5, a language model", (r"\.SelfAttention\.",), IMAGE_MODEL),
    Foreign("BERT, a language model", (r"embeddings\.word_embeddings\.",), IMAGE_MODEL),
    Foreign("GPT-2, a language model", (r"(^|\.)wte\.weight",), IMAGE_MODEL),
    Foreign("the text tower of CLIP", (r"(^|\.)token_embedding\.",), IMAGE_MODEL),
    Foreign("a language model", (r"(^|\.)(embed_tokens|tok_embeddings|word_embeddings|embed_in)\.",), IMAGE_MODEL),
    Foreign("a model of several stages, whose layers are not alike", (r"(^|\.)(stages|levels)\.\d+\.",)),
    Foreign("a network with convolutions and batch norms", (r"\.running_mean$",)),
)


def identify(tensors: Mapping[str, Tensor], kinds: Iterable[Foreign]) -> Finding | None:
    """What a file that is no plain Vision Transformer looks like, if it is one of these kinds."""
    bare = {WRAPPER.sub("", name): name for name in tensors} | {name: name for name in tensors}
    for title, patterns, hint in kinds:
        marks = [next((name for name in bare if re.search(pattern, name)), "") for pattern in patterns]
        if all(marks):
            return Finding(f"it looks like {title} ({bare[marks[0]]})", hint)
    for name, tensor in tensors.items():
        if tensor.ndim == 5:
            shape = tuple(tensor.shape)
            return Finding(f"it looks like a model of videos or volumes ({name} of shape {shape})", OTHER_MODEL)
    return None
