"""The list of formats, and the format of a file: detected from names and shapes, an error if two match."""

from collections.abc import Sequence

from vitral.core.errors import ConfigError, format_choices, suggest_choice
from vitral.weights.formats.clip import OpenClip, OpenClipTimm
from vitral.weights.formats.facebook import Dino, Dinov2Facebook, Dinov3Facebook, Ibot, Mae, MocoV3
from vitral.weights.formats.format import Checkpoint, Format
from vitral.weights.formats.google import BigVision, Google
from vitral.weights.formats.huggingface.aimv2 import HfAimv2
from vitral.weights.formats.huggingface.beit import HfBeit, HfInternvl
from vitral.weights.formats.huggingface.clip import HfBlip, HfClip, HfMlcd, HfSiglip, HfSiglip2
from vitral.weights.formats.huggingface.dino import HfDinov2, HfDinov3, HfTipsv2
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.towers import HfJanus, HfMgpstr, HfPixio, HfSapiens2, HfVitpose
from vitral.weights.formats.huggingface.vit import HfDeit, HfDpt, HfIjepa, HfMae, HfVit, HfVitMsn, HfYolos
from vitral.weights.formats.labml import Labml
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.torchvision import Torchvision
from vitral.weights.formats.unknown import unknown_format
from vitral.weights.formats.vit_pytorch import SimpleVit, VitPytorch

# The first family that can hold a model is the one in which it is written.
FAMILIES: tuple[Family, ...] = (
    HfVit(),
    HfDeit(),
    HfDinov2(),
    HfDinov3(),
    HfMae(),
    HfClip(),
    HfSiglip(),
    HfBeit(),
    HfIjepa(),
    HfDpt(),
    HfYolos(),
    HfSiglip2(),
    HfTipsv2(),
    HfAimv2(),
    HfBlip(),
    HfInternvl(),
    HfJanus(),
    HfMgpstr(),
    HfSapiens2(),
    HfPixio(),
    HfVitMsn(),
    HfMlcd(),
    HfVitpose(),
)
FORMATS: tuple[Format, ...] = (
    Timm(),
    Google(),
    BigVision(),
    *FAMILIES,
    Torchvision(),
    VitPytorch(),
    SimpleVit(),
    Dino(),
    Dinov2Facebook(),
    Dinov3Facebook(),
    Ibot(),
    Mae(),
    MocoV3(),
    OpenClip(),
    OpenClipTimm(),
    Labml(),
)
LIBRARIES = tuple(dict.fromkeys(each.library for each in FORMATS))
WRITABLE = ("vitral", *dict.fromkeys(each.library for each in FORMATS if each.writable))
# Prefixes that DDP, Lightning, torch.compile and FSDP add to every name.
WRAPPERS = ("module.", "model.", "_orig_mod.", "_fsdp_wrapped_module.")
AVERAGED = "n_averaged"  # beside the `module.` of torch's AveragedModel


def strip_wrapper(ckpt: Checkpoint) -> tuple[Checkpoint, str]:
    """The file without a prefix that a training script added to all names, if only that matches, and the prefix."""
    inner, removed = ckpt, ""
    if AVERAGED in ckpt.tensors:
        words = f"ignored {AVERAGED}: of how many models torch's AveragedModel has the mean"
        rest = {name: tensor for name, tensor in ckpt.tensors.items() if name != AVERAGED}
        ckpt = inner = ckpt._replace(tensors=rest, messages=(*ckpt.messages, words))
    while not any(each.matches(inner) for each in FORMATS):
        found = next((each for each in WRAPPERS if all(name.startswith(each) for name in inner.tensors)), "")
        if not found or not inner.tensors:
            return ckpt, ""
        bare = {name.removeprefix(found): tensor for name, tensor in inner.tensors.items()}
        inner, removed = inner._replace(tensors=bare), removed + found
    return inner, removed


def detect_format(ckpt: Checkpoint, name: str = "") -> Format:
    """The only format that matches the file, or the given one."""
    if name:
        if given := [each for each in FORMATS if each.name == name]:
            return given[0]
        hint = suggest_choice(name, [each.name for each in FORMATS])
        raise ConfigError(f"unknown format {name!r}", code="config.unknown_name", where="format", hint=hint)
    found: list[Format] = [each for each in FAMILIES if ckpt.config.get("model_type") in each.types]
    found = found or [each for each in FORMATS if each.matches(ckpt)]
    named = [each for each in found if each.takes_arch] if ckpt.arch else []
    found = named or [each for each in found if each.certain(ckpt)] or found
    others = list(dict.fromkeys(name for each in found for name in each.lookalikes(ckpt)))
    if len(found) == 1 and not others:
        return found[0]
    if found:
        names = [each.name for each in found]
        unread = f", or {format_choices(others)}, which no format here reads" if others else ""
        message = f"may be {format_choices(names)}{unread}: their files have the same names and shapes"
        if architectures := [name for each in found for name in each.candidates(ckpt)]:
            message += f"; an architecture of timm decides: --arch {format_choices(architectures)}"
        hint = f"choose one: {ckpt.convert_command(f'--format {names[0]}')}"
        raise ckpt.error(message, "weights.ambiguous", hint)
    raise unknown_format(ckpt, FORMATS)


def library_formats(library: str) -> Sequence[Format]:
    """The formats of a library."""
    found = [each for each in FORMATS if each.library == library]
    if not found:
        message, hint = f"unknown library {library!r}", suggest_choice(library, WRITABLE)
        raise ConfigError(message, code="config.unknown_name", where="to", hint=hint)
    return found
