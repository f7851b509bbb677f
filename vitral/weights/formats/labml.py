"""labml.ai's annotated ViT, `labml_nn.transformers.vit`: a state dict.  D width.

ReLU in the MLP and in a hidden layer of the head. The table of positions has a fixed length, of which an image takes
the first rows. Neither the heads nor the image size are recorded.
"""

from collections.abc import Iterator
from typing import ClassVar

from vitral.core.config import Size
from vitral.models.attention import Attention
from vitral.models.embed import Patches
from vitral.models.head import TanhHead
from vitral.models.mlp import Mlp
from vitral.models.position import Learned1d
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import (
    PLAIN,
    Checkpoint,
    DetectedModel,
    Format,
    assumed_preprocessing,
    infer_sizes,
    parse_positive_int,
)
from vitral.weights.formats.rules import STEM, TABLE, TOKENS, Names, Rule, layer_names, mapped, patch_kernel

POSITIONS, TOKEN, HIDDEN = "pos_emb.positional_encodings", "cls_token_emb", "classification.linear1.weight"
GATE = "transformer_layers.0.feed_forward.linear_v.weight"
EPS = 1e-5


class Labml(Format):
    """A Vision Transformer of labml.ai."""

    library = package = name = "labml"
    title = "labml's Vision Transformer"
    names: ClassVar[Names] = {
        STEM: "patch_emb.conv",
        **layer_names(
            "transformer_layers.*.",
            {
                "mixer_norm": "norm_self_attn",
                "mixer.heads.qkv": ("self_attn.query.linear", "self_attn.key.linear", "self_attn.value.linear"),
                "mixer.project": "self_attn.output",
                "mlp_norm": "norm_ff",
                "mlp.expand": "feed_forward.layer1",
                "mlp.contract": "feed_forward.layer2",
            },
        ),
        "norm": "ln",
        "head.hidden": "classification.linear1",
        "head.classifier.linear": "classification.linear2",
    }
    supported = PLAIN | {
        "tokens.cls": (True,),
        "position.cls": (True,),
        "mixer.qkv_bias": (True,),
        "pool.kind": ("cls",),
        "pool.norm": ("before",),
        "head.kind": ("tanh",),
        "head.activation": ("relu",),
        "eps": (EPS,),
    }

    def matches(self, ckpt: Checkpoint) -> bool:
        return {POSITIONS, TOKEN, HIDDEN, "patch_emb.conv.weight"} <= ckpt.tensors.keys()

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        if GATE in ckpt.tensors:
            raise ckpt.error(f"{GATE}: the activation of a gated MLP is not recorded", "weights.unsupported")
        wanted = [each for each in ("mixer.heads=N", "image_size=HEIGHTxWIDTH") if not ckpt.setting(each.split("=")[0])]
        if wanted:
            message = f"a file of {self.title} does not record all of its settings"
            hint = f"give the others, {', '.join(wanted)}: {ckpt.convert_command('--set A=B --set C=D')}"
            raise ckpt.error(message, "weights.missing_setting", hint)
        width, channels, patch, depth, hidden = infer_sizes(ckpt, self.names)
        classes, inner = ckpt.shape("classification.linear2.weight", 2)
        model = Vit(
            image_size=Size.parse(ckpt.setting("image_size")),
            channels=channels,
            width=width,
            depth=depth,
            stem=Patches(patch=patch, remainder="crop"),
            position=Learned1d(resampling="slice"),
            mixer=Attention(heads=parse_positive_int(ckpt.setting("mixer.heads"), "mixer.heads")),
            mlp=Mlp(ratio=hidden / width, activation="relu"),
            head=TanhHead(num_classes=classes, hidden=inner, activation="relu"),
            eps=EPS,
        )
        rows, table = model.layout(model.image_size).length(), ckpt.shape(POSITIONS, 3)[0]
        if rows > table:
            message = f"{model.image_size} needs {rows} positions, and {POSITIONS} has {table}"
            raise ckpt.missing_setting(message, "image_size=HEIGHTxWIDTH", "weights.bad_setting")
        ckpt = ckpt._replace(tensors={**ckpt.tensors, POSITIONS: ckpt.tensors[POSITIONS][:rows]})
        assumed = ["ReLU in the MLP, which is labml's default, and whole images, scaled to [-1, 1]"]
        if table > rows:
            assumed.append(f"images of at most {model.image_size}: the last {table - rows:,} positions are left out")
        return self.detected(ckpt, model, assumed_preprocessing(model.image_size, channels), assumed)

    def special_rules(self, model: Vit) -> list[Rule]:
        """Tokens and positions are (rows, 1, D) in theirs, (rows, D) and (1, rows, D) in ours."""
        return [
            patch_kernel(f"{STEM}.weight", f"{self.names[STEM]}.weight", model.stem.patch),
            mapped(TOKENS, TOKEN, lambda found: found[0], lambda own: own[None]),
            mapped(TABLE, POSITIONS, lambda found: found.transpose(0, 1), lambda own: own.transpose(0, 1)),
        ]

    def other_faults(self, model: Vit, bundle: Bundle) -> Iterator[str]:
        if isinstance(model.mlp, Mlp) and model.mlp.activation != "relu":
            yield f"mlp.activation: {self.title} has relu by default, this model {model.mlp.activation}"

    def required_settings(self, model: Vit) -> tuple[str, ...]:
        assert isinstance(model.mixer, Attention)
        return (f"mixer.heads={model.mixer.heads}",)
