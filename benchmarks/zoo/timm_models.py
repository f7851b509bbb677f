"""timm's models by name, three layers deep, in timm's hub folder and as a bare file."""

import os
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from benchmarks.zoo.judge import Answers, Subject, float64, relative_error
from benchmarks.zoo.random_weights import random_images, randomize, seed_of
from vitral.weights.oracles.torchvision_stub import stub_torchvision

GROUPS = {
    "vit": "vit_*",
    "deit": "deit*",
    "eva": "eva*",
    "beit": "beit*",
    "flexivit": "flexivit*",
    "aimv2": "aimv2*",
    "naflexvit": "naflexvit*",
    "test_vit": "test_vit*",
}
WAYS = ("hub", "arch", "bare")
DEPTHS = (3, 4, 6, 8, 12, 24)
MOST_BYTES = 5_000_000_000  # of the weights in float64; the largest needs 12 GB of memory


def load_timm() -> Any:
    os.environ["HF_HUB_OFFLINE"] = "1"  # before the hub's package is imported, which would try again and again
    stub_torchvision()
    return import_module("timm")


def names(group: str) -> list[str]:
    return [name for name in load_timm().list_models() if fnmatch(name, GROUPS[group])]


def make(group: str, name: str, folder: Path) -> Subject:
    """Write the model of a name in timm's way, with random weights, and ask timm what it answers."""
    timm = load_timm()
    arguments, notes = shallow(timm, name)
    model = timm.create_model(name, **arguments)
    randomize(model, seed_of(name))
    hub = folder / "hub"
    import_module("timm.models._hub").save_for_hf(model, hub, model_args=arguments, safe_serialization=True)
    bare = folder / "bare" / "model.safetensors"
    bare.parent.mkdir()
    bare.hardlink_to(hub / "model.safetensors")
    native = tuple(model.pretrained_cfg["input_size"][1:])
    native = tuple(getattr(model.patch_embed, "img_size", None) or native) if hasattr(model, "patch_embed") else native
    parts = traits(model, native)
    del model
    answers, more = ask(partial(reopen, timm, name, arguments, hub), hub, native, seed_of(name))
    ways: dict[str, tuple[Path, dict[str, Any]]] = {
        "hub": (hub, {}),
        "arch": (bare, {"arch": name}),
        "bare": (bare, {}),
    }
    if "embed_dim" in arguments:  # a narrower model than the name says
        ways = {"hub": ways["hub"]}
    return Subject(ways, answers, (*notes, *more), candidate=name, traits=parts)


def traits(model: Any, native: tuple[int, int]) -> tuple[str, ...]:
    """What timm builds the model of: classes of its parts and settings that change what they do."""
    block = model.blocks[0]
    attention = getattr(block, "attn", None)
    parts = {"model": model, "block": block, "attention": attention, "mlp": getattr(block, "mlp", None)}
    parts |= {"norm": getattr(block, "norm1", None), "activation": getattr(parts["mlp"], "act", None)}
    parts |= {"rope": getattr(model, "rope", None), "attention pool": getattr(model, "attn_pool", None)}
    parts |= {"norm of q": getattr(attention, "q_norm", None), "norm in attention": getattr(attention, "norm", None)}
    parts |= {
        "norm in mlp": getattr(parts["mlp"], "norm", None),
        "positions in attention": getattr(attention, "rel_pos", None),
    }
    parts |= {"shared positions": getattr(model, "shared_rel_pos", None) or getattr(model, "rel_pos_bias", None)}
    parts |= {"norm before": getattr(model, "norm_pre", None), "last norm": getattr(model, "norm", None)}
    parts |= {"norm of the pool": getattr(model, "fc_norm", None), "stem": getattr(model, "patch_embed", None)}
    parts |= {"stem's network": getattr(parts["stem"], "backbone", None), "head": getattr(model, "head", None)}
    found = [
        f"{role}: {type(part).__name__}" for role, part in parts.items() if not isinstance(part, nn.Identity | None)
    ]
    names = ("global_pool", "pool_include_prefix", "no_embed_class", "num_prefix_tokens", "num_reg_tokens", "reg_token")
    for name in names:
        value = getattr(model, name, None)
        found += [f"{name}: {value.shape[1] if isinstance(value, Tensor) else value}"] if value is not None else []
    found += ["no class token"] if getattr(model, "cls_token", 0) is None else []
    found += ["no learned positions"] if getattr(model, "pos_embed", 0) is None else []
    found += ["q and v biases apart"] if getattr(attention, "q_bias", None) is not None else []
    found += ["the patch does not divide the image"] if any(side % token_width(model) for side in native) else []
    return tuple(found)


def shallow(timm: Any, name: str) -> tuple[dict[str, Any], list[str]]:
    """The arguments of the shallowest model of at least three layers; narrower only where memory asks for it."""
    found = None
    for arguments in depth_arguments(timm, name):
        try:
            with torch.device("meta"):
                found = timm.create_model(name, **arguments)
            break
        except AssertionError as error:  # a name that needs more layers, or settings for each of them
            reason = error
    if found is None:
        raise reason
    notes = [] if arguments == {"depth": DEPTHS[0]} else [f"built with {arguments}"]
    size = 8 * sum(tensor.numel() for tensor in found.state_dict().values())
    factor = 1
    while size / factor**2 > MOST_BYTES:
        factor *= 2
    if factor > 1:
        heads = found.blocks[0].attn.num_heads
        arguments |= {"embed_dim": found.embed_dim // factor, "num_heads": heads // factor}
        if "num_kv_heads" in arguments:
            arguments["num_kv_heads"] = [count // factor for count in arguments["num_kv_heads"]]
        notes.append(f"width {found.embed_dim // factor} instead of {found.embed_dim}, as many times fewer heads")
    return arguments, notes


def depth_arguments(timm: Any, name: str) -> Iterator[dict[str, Any]]:
    """Arguments to try for few layers; key and value heads of the first, a middle and the last layer if they differ."""
    yield {"depth": DEPTHS[0]}
    with torch.device("meta"):
        blocks = timm.create_model(name).blocks
    heads = [getattr(block.attn, "num_kv_heads", 0) for block in blocks]
    if all(heads):
        yield {"depth": 3, "num_kv_heads": [heads[0], heads[len(heads) // 2], heads[-1]]}
    yield from ({"depth": depth} for depth in DEPTHS[1:])


def reopen(timm: Any, name: str, arguments: dict[str, Any], hub: Path, **more: Any) -> Any:
    """timm's model of its own folder; where the folder does not suffice, of its file."""
    try:
        return timm.create_model(f"local-dir:{hub}", pretrained=True, **more).eval()
    except FileNotFoundError:  # pretrained=True asks the hub for the stem's network as well
        return timm.create_model(name, checkpoint_path=hub / "model.safetensors", **arguments, **more).eval()


def ask(build: Callable[..., Any], hub: Path, native: tuple[int, int], seed: int) -> tuple[list[Answers], list[str]]:
    """What timm answers at the native size, and at a wider one by its own resampling."""
    notes = []
    with float64():
        model = build()
        check_reopened(model, hub)
        step = token_width(model)
        wider = (native[0], native[1] + 2 * step)
        answers = [answer(model, random_images(native, seed))]
        images = random_images(wider, seed)
        other, how = resized(build, model, wider)
        if other is None:
            notes.append(f"one size only: timm cannot run another: {how}")
        else:
            answers.append(answer(other, images))
            again = answer(other, answers[0].images) if how == "dynamic_img_size" else answers[0]
            if answers[0].logits is not None and again.logits is not None:
                assert relative_error(again.logits, answers[0].logits) < 1e-9, "timm's dynamic size is another model"
            notes.append(f"other size by {how}")
    if answers[0].logits is None:
        notes.append("tokens only: timm has no pool here")
    return answers, notes


def check_reopened(model: nn.Module, hub: Path) -> None:
    """timm's own reader must give the weights back, to the last bit."""
    written, read = load_file(hub / "model.safetensors"), model.state_dict()
    changed = [
        name for name in written if name not in read or not torch.equal(written[name].to(read[name]), read[name])
    ]
    assert len(written) == len(read), "timm's folder has other tensors than its model"
    assert not changed, f"timm reads other weights from its own folder: {changed[:3]}"


def token_width(model: Any) -> int:
    """The pixels that one token is wide."""
    embed = getattr(model, "patch_embed", None)
    if embed is None:
        return int(model.embeds.patch_size[1])
    ratio = embed.feat_ratio(as_scalar=True) if hasattr(embed, "feat_ratio") else embed.patch_size[1]
    return int(ratio)


def resized(build: Callable[..., Any], model: Any, size: tuple[int, int]) -> tuple[Any, str]:
    """The same model for another size, by the first of timm's ways that works, and its name."""
    if getattr(model, "dynamic_img_size", False) or not hasattr(model, "patch_embed"):
        return model, "its own means"
    reason = ""
    for how, arguments in (("dynamic_img_size", {"dynamic_img_size": True}), ("img_size", {"img_size": size})):
        try:
            other = build(**arguments)
            other.forward_features(torch.zeros(1, 3, *size, dtype=torch.float64))
            return other, how
        except (TypeError, AssertionError, RuntimeError) as error:
            reason = str(error).splitlines()[0][:100]
    return None, reason


def answer(model: Any, images: Tensor) -> Answers:
    """timm's tokens, whose order is ours, and its logits, or pooled features where it has no head."""
    before: list[Tensor] = []
    hook = model.norm.register_forward_hook(lambda part, given, found: before.append(given[0]))
    tokens = model.forward_features(images)
    hook.remove()
    definitions = {"after timm's last norm": tokens}
    if before and before[0] is not tokens:
        definitions["before timm's last norm"] = before[0]
    if not isinstance(getattr(model, "fc_norm", nn.Identity()), nn.Identity):
        definitions["after the norm of timm's pool"] = model.fc_norm(tokens)
    logits = model.forward_head(tokens)
    return Answers(images, definitions, logits if logits.ndim == 2 else None)
