"""timm's plain Vision Transformers: a state dict, alone or with the config.json of the hub."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, ClassVar

from torch import Tensor

from vitral.core.config import Size
from vitral.data.transforms.crop import CenterCrop
from vitral.models.attention import Attention
from vitral.models.head import NoHead
from vitral.models.vit import Vit
from vitral.weights.bundle import Bundle
from vitral.weights.formats.format import CONFIG, Checkpoint, DetectedModel, Format, OracleFiles, json_file
from vitral.weights.formats.rules import TABLE, TIMM_LAYER, Names, Rule, Weights, layer_names
from vitral.weights.formats.timm.architectures import Architecture, architectures, find_architecture
from vitral.weights.formats.timm.candidates import choose, matching
from vitral.weights.formats.timm.hub import (
    HubConfig,
    check_arguments,
    complete_images,
    input_size,
    parse_config,
    parse_preprocessing,
)
from vitral.weights.formats.timm.infer import infer_arguments
from vitral.weights.formats.timm.resolve import Resolved, native_sizes, resolve
from vitral.weights.formats.timm.writer import NoWay, WrittenModel, hub_config, timm_form
from vitral.weights.oracles.oracle import NoOracleError, OracleRequest

STEMS = ("patch_embed.proj.weight", "patch_embed.backbone.0.conv.weight", "embeds.proj.weight")
LAYERS = ("attn.qkv.weight", "attn.q_proj.weight", "attns.0.attn.qkv.weight", "in_proj.weight")
CONSTANTS = (".relative_position_index", ".rel_coords_log", ".attn.rope.freqs_cos", ".attn.rope.freqs_sin")
NO_CONFIG = HubConfig()
POOLS = {"eva": "avg", "beit": "avg", "relpos": "avg", "naflex": "map"}  # of classes whose default is not `token`
DISTILLED_MEAN, DISTILLED_STD = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]  # DeiT's
DINOV2 = {"mask_token", "register_tokens", "blocks.0.mlp.w12.weight"}  # only in files of facebook
# The names that timm and facebook's own repositories share.
SHARED: Names = {
    "stem.project": "patch_embed.proj",
    TABLE: "pos_embed",
    **TIMM_LAYER,
    **layer_names("blocks.*.", {"mixer.heads.q_norm": "attn.q_norm", "mixer.heads.k_norm": "attn.k_norm"}),
    "norm": "norm",
}


class Timm(Format):
    """A Vision Transformer of timm."""

    library = package = name = "timm"
    title = "timm's Vision Transformer"
    names: ClassVar[Names] = {**SHARED, "head.linear": "head"}
    takes_arch = True

    def matches(self, ckpt: Checkpoint) -> bool:
        names = ckpt.tensors.keys()
        stem = any(name in names for name in STEMS)
        return stem and any(f"blocks.0.{name}" in names for name in LAYERS) and not names & DINOV2

    def candidates(self, ckpt: Checkpoint) -> list[str]:
        kept = {name: tensor for name, tensor in ckpt.tensors.items() if name not in constants(ckpt)}
        return [arch.name for arch in matching(ckpt._replace(tensors=kept))]

    def detect(self, ckpt: Checkpoint) -> DetectedModel:
        unused = constants(ckpt)
        kept = {name: tensor for name, tensor in ckpt.tensors.items() if name not in unused}
        return self.detect_model(ckpt._replace(tensors=kept))._replace(unused=unused)

    def detect_model(self, ckpt: Checkpoint) -> DetectedModel:
        """The model of a file without constants."""
        config = parse_config(ckpt)
        if ckpt.arch:
            arch, tag = find_architecture(ckpt.arch)
            images = arch.image_facts(tag)
            found = resolve(ckpt, arch.kind, arch.arguments, native_sizes(arch), exact=False)
            more = () if tag or len(arch.images) == 1 else (preprocessing_of(arch),)
            return self.as_detected(ckpt, found, images, more)
        if config.architecture.partition(".")[0] in architectures():
            return self.from_hub(ckpt, config)
        if not config.arguments and (names := matching(ckpt)):
            arch, found, _ = choose(ckpt, names)
            stated = (describe_candidate(arch, found), *([] if config.images else [preprocessing_of(arch)]))
            images = {**arch.image_facts(), **config.images}
            return self.as_detected(ckpt, found, images, stated, config)._replace(arch=arch.name)
        stated_settings = (*argument_settings(config.arguments), *ckpt.settings)
        kind, arguments, assumed = infer_arguments(ckpt._replace(settings=stated_settings))
        found = resolve(ckpt, kind, {**arguments, **config.arguments}, [], exact=False)
        images = (
            config.images or {"mean": DISTILLED_MEAN, "std": DISTILLED_STD} if kind == "distilled" else config.images
        )
        stated = () if config.images else ("timm's usual preprocessing",)
        return self.as_detected(ckpt, found, images, (*assumed, *stated), config)

    def from_hub(self, ckpt: Checkpoint, config: HubConfig) -> DetectedModel:
        """The model of a folder whose config.json names an architecture."""
        arch = find_architecture(config.architecture)[0]
        given = {**arch.arguments, **config.arguments}
        check_arguments(ckpt, config.arguments)
        if config.pool and "global_pool" not in config.arguments:
            given |= recorded_pool(ckpt, arch, config.pool)
        sizes = [size for size in (input_size(config.images, ckpt), *native_sizes(arch)) if size]
        found = resolve(ckpt, arch.kind, given, sizes, exact=True)
        images, stated = complete_images(config.images)
        return self.as_detected(ckpt, found, images, stated, config)

    def as_detected(
        self,
        ckpt: Checkpoint,
        found: Resolved,
        images: Mapping[str, Any],
        assumed: Iterable[str] = (),
        config: HubConfig = NO_CONFIG,
    ) -> DetectedModel:
        """The result of `detect`."""
        model, layout, _ = found.found
        flexible = layout.naflex or config.arguments.get("dynamic_img_size")
        size = (flexible and input_size(images, ckpt)) or model.image_size
        preprocessing = parse_preprocessing(images, size, model.channels, ckpt)
        if isinstance(preprocessing.crop, CenterCrop) and preprocessing.crop.aspect == "keep" and len(set(size)) > 1:
            assumed = (*assumed, "resized sides are rounded down, which timm does only for square images")
        labels = () if isinstance(model.head, NoHead) else config.labels
        detected = self.detected(ckpt, model, preprocessing, (*assumed, *found.assumptions), labels)
        return detected._replace(rules=layout.rules)

    def rules(self, model: Vit, own: Weights) -> list[Rule]:
        written = timm_form(model.to_json())
        assert isinstance(written, WrittenModel)
        return written.layout.rules(model, own)

    def nearest(self, model: Vit) -> Vit:
        written = timm_form(model.to_json())
        return written.nearest or model if isinstance(written, NoWay) else model

    def unsupported(self, bundle: Bundle) -> Iterator[str]:
        model = bundle.model
        if not isinstance(model, Vit):
            yield f"kind: {self.title} is a Vision Transformer, this model a {model.kind}"
            return
        written = timm_form(model.to_json())
        if isinstance(written, NoWay):
            yield from written.faults

    def files(self, bundle: Bundle, tensors: Mapping[str, Tensor]) -> dict[str, Iterable[memoryview]]:
        assert isinstance(bundle.model, Vit)
        written = timm_form(bundle.model.to_json())
        assert isinstance(written, WrittenModel)
        return super().files(bundle, tensors) | {CONFIG: json_file(hub_config(bundle, written))}

    def oracle_request(self, files: OracleFiles, model: Vit) -> OracleRequest:
        if "architecture" in files.config:
            return OracleRequest("timm", {"folder": str(files.folder)})
        if not files.arch:
            raise NoOracleError("the file does not name its architecture of timm; --arch NAME does")
        classes = 0 if isinstance(model.head, NoHead) else model.head.num_classes
        sizes: dict[str, Any] = {"num_classes": classes, "in_chans": model.channels, "depth": model.depth}
        if not files.arch.startswith("naflex"):
            sizes["img_size"] = list(model.image_size)
        return OracleRequest("timm", {"arch": files.arch, "file": str(files.file), "arguments": sizes})


def constants(ckpt: Checkpoint) -> dict[str, str]:
    """Tensors that older versions of timm saved and that the model computes, with the reason to ignore them."""
    found = {}
    for name, tensor in ckpt.tensors.items():
        rope = name.startswith("rope.") and name != "rope.freqs"
        no_bias = name.endswith(".attn.k_bias") and not tensor.is_meta and not bool(tensor.any())
        if rope or no_bias or name.endswith(CONSTANTS):
            found[name] = "a constant that the model computes"
    return found


def describe_candidate(arch: Architecture, found: Resolved) -> str:
    """The assumption that a file is of an architecture, with what its tensors do not show."""
    model = found.found.model
    heads = f"{model.mixer.heads} heads, " if isinstance(model.mixer, Attention) else ""
    return f"timm's {arch.name}: {heads}{model.mlp.activation}, eps {model.eps:g}, pool={model.pool.kind}"


def argument_settings(arguments: Mapping[str, Any]) -> Iterator[str]:
    """Arguments of a config.json as the settings that a bare file would be asked for."""
    names = {"num_heads": "mixer.heads", "act_layer": "mlp.activation", "global_pool": "pool"}
    yield from (f"{names[name]}={value}" for name, value in arguments.items() if name in names)
    if size := arguments.get("img_size"):
        yield f"image_size={Size.parse(size)}"


def preprocessing_of(arch: Architecture) -> str:
    """The assumption about images."""
    tag = next(iter(arch.images))
    return f"the preprocessing of {arch.name}{f'.{tag}' if tag else ''}"


def recorded_pool(ckpt: Checkpoint, arch: Architecture, pool: str) -> dict[str, Any]:
    """The pool of the model that was saved, where the architecture has another."""
    norm = {"eva": "use_fc_norm", "beit": "", "naflex": "fc_norm"}.get(arch.kind, "fc_norm")
    if arch.arguments.get("global_pool", POOLS.get(arch.kind, "token")) == pool:
        return {}
    return {"global_pool": pool} | ({norm: "fc_norm.weight" in ckpt.tensors} if norm else {})
