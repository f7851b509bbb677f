"""Which format a file is of: told by names and shapes, and an error where that leaves two."""

import shlex
from collections.abc import Sequence

from vitral.core.errors import ConfigError, WeightsError, format_choices, suggest_choice
from vitral.weights.formats.dino import Dino, Dinov2Facebook
from vitral.weights.formats.format import Checkpoint, Format
from vitral.weights.formats.google import BigVision, Google
from vitral.weights.formats.huggingface.clip import HfClip, HfSiglip
from vitral.weights.formats.huggingface.dino import HfDinov2, HfDinov3
from vitral.weights.formats.huggingface.family import Family
from vitral.weights.formats.huggingface.vit import HfDeit, HfMae, HfVit
from vitral.weights.formats.timm import Timm
from vitral.weights.formats.torchvision import Torchvision
from vitral.weights.formats.vit_pytorch import SimpleVit, VitPytorch

# The first family that can hold a model is the one in which it is written.
FAMILIES: tuple[Family, ...] = (HfVit(), HfDeit(), HfDinov2(), HfDinov3(), HfMae(), HfClip(), HfSiglip())
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
)
LIBRARIES = tuple(dict.fromkeys(each.library for each in FORMATS))
WRITABLE = ("vitral", *(each for each in LIBRARIES if each != Dino.library))  # facebook's files are only read
SHOWN = 5  # tensors that a message names
WRAPPERS = ("module.", "model.", "_orig_mod.")  # that DDP, Lightning and torch.compile put before every name


def strip_wrapper(ckpt: Checkpoint) -> tuple[Checkpoint, str]:
    """The file without what a training script put before all names, and what that was: where it is known only so."""
    inner, removed = ckpt, ""
    while not _claimed(inner):
        found = next((each for each in WRAPPERS if all(name.startswith(each) for name in inner.tensors)), "")
        if not found or not inner.tensors:
            return ckpt, ""
        bare = {name.removeprefix(found): tensor for name, tensor in inner.tensors.items()}
        inner, removed = inner._replace(tensors=bare), removed + found
    return inner, removed


def _claimed(ckpt: Checkpoint) -> bool:
    return any(each.matches(ckpt) for each in FORMATS)


def detect_format(ckpt: Checkpoint, name: str = "") -> Format:
    """The only format that claims the file, or the one that is named."""
    if name:
        return _named(name)
    found = [each for each in FORMATS if each.matches(ckpt)]
    if len(found) == 1:
        return found[0]
    if found:
        names = [each.name for each in found]
        message = f"may be {format_choices(names)}: their files have the same names and shapes"
        raise WeightsError(
            message,
            code="weights.ambiguous",
            where=ckpt.path,
            hint=f"say which: vitral convert {shlex.quote(str(ckpt.path))} NEW-FOLDER --format {names[0]}",
        )
    some = ", ".join(sorted(ckpt.tensors)[:SHOWN])
    kind = f" (model_type {ckpt.config['model_type']!r})" if "model_type" in ckpt.config else ""
    more = ", ..." if len(ckpt.tensors) > SHOWN else ""
    message = f"no Vision Transformer that is known here{kind}; its tensors: {some}{more}"
    hint = f"known are {format_choices(each.name for each in FORMATS)}"
    raise WeightsError(message, code="weights.unknown_format", where=ckpt.path, hint=hint)


def library_formats(library: str) -> Sequence[Format]:
    """The formats of a library."""
    found = [each for each in FORMATS if each.library == library]
    if not found:
        message, hint = f"unknown library {library!r}", suggest_choice(library, WRITABLE)
        raise ConfigError(message, code="config.unknown_name", where="to", hint=hint)
    return found


def _named(name: str) -> Format:
    found = next((each for each in FORMATS if each.name == name), None)
    if found is None:
        hint = suggest_choice(name, [each.name for each in FORMATS])
        raise ConfigError(f"unknown format {name!r}", code="config.unknown_name", where="format", hint=hint)
    return found
