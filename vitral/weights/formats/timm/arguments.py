"""The arguments of timm's constructors, from the table or a config.json, and what they mean in ours."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, format_choices
from vitral.models.activation import ActivationName
from vitral.models.attention import Attention
from vitral.models.block import LayerScale, NoScale, ScaleConfig
from vitral.models.head import HeadConfig, LinearHead, NoHead
from vitral.models.mlp import Mlp, MlpConfig, SwiGlu
from vitral.models.norm import LayerNorm, NormConfig, RmsNorm
from vitral.models.pool import AttentionPool, ClassPool, MeanAllPool, MeanPool, NormPlace, PoolConfig

ACTIVATIONS: dict[str, ActivationName] = {
    "gelu": "gelu",
    "gelu_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "swish": "silu",
    "relu": "relu",
    "relu6": "relu6",
    "leaky_relu": "leaky_relu",
    "elu": "elu",
    "selu": "selu",
    "mish": "mish",
    "hard_swish": "hardswish",
    "tanh": "tanh",
    "sigmoid": "sigmoid",
}
NORMS = {"layernorm": ("layer_norm", 1e-6), "rmsnorm": ("rms_norm", 1e-6)}  # by the names that timm takes, with eps
# Arguments that change nothing in a trained model: initialization, and what timm itself does with sizes.
IRRELEVANT = frozenset({
    "weight_init", "fix_init", "head_init_scale", "dynamic_img_size", "pretrained_strict", "device", "dtype",
    "features_only", "scriptable", "exportable", "no_jit", "rope_shift_coords", "rope_jitter_coords",
    "rope_rescale_coords", "checkpoint_path", "use_naflex",
})  # fmt: skip
# Dropout that ours have no place for; it acts in training only.
UNUSED_DROPOUT = {"drop_rate": "before the head", "patch_drop_rate": "of patches"}


def unsupported(message: str, where: str) -> ConfigError:
    """The error for an argument that has no counterpart in ours."""
    return ConfigError(message, code="config.unsupported", where=where)


class Arguments:
    """Arguments by name. Every one must be read: `finish` refuses the others."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        self.given = dict(given)
        self.used = set(IRRELEVANT)

    def value(self, name: str, default: Any) -> Any:
        self.used.add(name)
        return self.given.get(name, default)

    def flag(self, name: str, default: bool = False) -> bool:
        found = self.value(name, default)
        if not isinstance(found, bool):
            raise self.wrong(name, "true or false")
        return found

    def optional_flag(self, name: str) -> bool | None:
        return None if self.value(name, None) is None else self.flag(name)

    def count(self, name: str, default: int, least: int = 0) -> int:
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int) or found < least:
            raise self.wrong(name, f"a whole number of at least {least}" if least else "a whole number")
        return found

    def number(self, name: str, default: float) -> float:
        found = self.value(name, default)
        if isinstance(found, bool) or not isinstance(found, int | float):
            raise self.wrong(name, "a number")
        return float(found)

    def optional_number(self, name: str) -> float | None:
        return None if self.value(name, None) is None else self.number(name, 0.0)

    def text(self, name: str, default: str) -> str:
        found = self.value(name, default)
        found = default if found is None else found
        if not isinstance(found, str):
            raise self.wrong(name, "text")
        return found

    def size(self, name: str, default: int) -> Size:
        found = self.value(name, default)
        try:
            return Size.parse(found if found is not None else default)
        except ConfigError as error:
            raise ConfigError(error.message, code=error.code, where=f"model_args.{name}") from None

    def only(self, name: str, *allowed: Any) -> None:
        """Refuse a value that ours have no counterpart for; the first allowed one is the default."""
        if (found := self.value(name, allowed[0])) not in allowed:
            message = f"timm's {name}={found} has no counterpart, expected {format_choices(map(str, allowed))}"
            raise unsupported(message, f"model_args.{name}")

    def wrong(self, name: str, expected: str) -> ConfigError:
        message = f"expected {expected}, got {self.given.get(name)!r}"
        return ConfigError(message, code="config.wrong_type", where=f"model_args.{name}")

    def finish(self) -> tuple[str, ...]:
        """What is not carried into our model; ConfigError for arguments that nothing has read."""
        notes = [
            f"{name}={rate:g}, dropout {place}, which this model does not have, acts in training only"
            for name, place in UNUSED_DROPOUT.items()
            if (rate := self.number(name, 0.0))
        ]
        if unknown := sorted(self.given.keys() - self.used):
            message = f"timm's {unknown[0]}={self.given[unknown[0]]!r} has no counterpart"
            raise unsupported(message, f"model_args.{unknown[0]}")
        return tuple(notes)

    def activation(self, default: str = "gelu") -> ActivationName:
        name = self.text("act_layer", default).lower()
        if name not in ACTIVATIONS:
            raise unsupported(f"the activation {name} has no counterpart", "model_args.act_layer")
        return ACTIVATIONS[name]

    def norm(self, name: str = "norm_layer") -> tuple[NormConfig, float]:
        """The kind of a norm and its eps."""
        found = self.value(name, None) or {"kind": "layer_norm", "eps": 1e-6}
        if isinstance(found, str):
            kind, eps = NORMS.get(found.lower(), (found, 0.0))
            found = {"kind": kind, "eps": eps}
        kinds: dict[Any, NormConfig] = {"layer_norm": LayerNorm(), "rms_norm": RmsNorm()}
        if not isinstance(found, dict) or found.get("kind") not in kinds:
            raise unsupported(f"the norm {found} has no counterpart", f"model_args.{name}")
        return kinds[found["kind"]], float(found["eps"])

    def dropout(self) -> "Dropout":
        fields = ("pos_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate")
        return Dropout(*(self.number(name, 0.0) for name in fields))

    def common(self, image: Size) -> dict[str, Any]:
        """The settings of a model that all classes take by the same names."""
        norm, eps = self.norm()
        return {
            "image_size": image,
            "channels": self.count("in_chans", 3),
            "width": self.count("embed_dim", 768),
            "depth": self.count("depth", 12),
            "head": self.head(),
            "norm": norm,
            "eps": eps,
        }

    def attention(self, output_norm: str = "", qk_norm: bool = True, project_bias: bool = False) -> Attention:
        """The mixer: the name of the flag for its output's norm, and which flags the class has."""
        drop = self.dropout()
        return Attention(
            heads=self.count("num_heads", 12),
            qkv_bias=self.flag("qkv_bias", True),
            qk_norm=qk_norm and self.flag("qk_norm"),
            output_norm=bool(output_norm) and self.flag(output_norm),
            project_bias=not project_bias or self.flag("proj_bias", True),
            attention_dropout=drop.attention,
            dropout=drop.layers,
        )

    def head(self) -> HeadConfig:
        classes = self.count("num_classes", 1000)
        return LinearHead(num_classes=classes) if classes else NoHead()

    def layer_scale(self, zero_is_none: bool = True) -> ScaleConfig:
        init = self.optional_number("init_values")
        return NoScale() if init is None or (zero_is_none and not init) else LayerScale(init=init)


class Dropout(NamedTuple):
    """The rates that ours have too."""

    tokens: float
    layers: float
    attention: float
    path: float


class PoolArguments(NamedTuple):
    """How timm pools, whatever the class of the model."""

    name: str  # token, avg, map, or nothing: all tokens
    before: bool  # a norm of the tokens
    after: bool  # a norm of the pooled vector
    prefix: bool = False  # whether class token and registers are pooled too
    heads: int = 0  # of the attention pool; 0 is as many as the layers
    mlp_ratio: float = 0.0  # of the attention pool; 0 is that of the layers


def pool_config(pool: PoolArguments, cls: bool, mlp: MlpConfig) -> PoolConfig:
    """Our pool; ConfigError where there is none."""
    places: dict[tuple[bool, bool], NormPlace] = {
        (True, False): "before",
        (False, True): "after",
        (True, True): "both",
        (False, False): "none",
    }
    norm = places[pool.before, pool.after]
    if pool.name == "map":
        if norm != "before":
            raise unsupported(f"an attention pool with its norm {norm} has no counterpart", "model_args.global_pool")
        if isinstance(mlp, SwiGlu) or mlp.norm or not mlp.bias:
            message = "timm's attention pool has a plain MLP, ours that of the layers, which differs here"
            raise unsupported(message, "model_args.global_pool")
        return AttentionPool(
            heads=pool.heads or "mixer",
            tokens="all" if pool.prefix else "patches",
            mlp_ratio=pool.mlp_ratio or "mlp",
        )
    if pool.name == "token" or (not pool.name and cls):
        return ClassPool(norm=norm)
    if pool.name in ("avg", ""):
        return MeanAllPool(norm=norm) if pool.prefix else MeanPool(norm=norm)
    raise unsupported(f"timm's pool {pool.name!r} has no counterpart", "model_args.global_pool")


def gated_config(hidden: int, width: int, **fields: Any) -> SwiGlu:
    """A gated MLP of this hidden width."""
    return SwiGlu(ratio=hidden / width, multiple=1 if hidden % 8 else 8, **fields)


def mlp_config(hidden: int, width: int, **fields: Any) -> Mlp:
    """An MLP of this hidden width."""
    return Mlp(ratio=hidden / width, **fields)
