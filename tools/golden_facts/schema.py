"""Names: what is public, which options the verbs have, and every kind, field and default of the configs."""

import inspect
import re
from collections.abc import Iterator
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic_core import PydanticUndefined, to_jsonable_python

from tools.golden_facts.command import output_of
from tools.golden_facts.flat import leaves
from tools.golden_facts.names import public, reference

ROOTS = ("Recipe", "Bundle", "Preprocessing", "Decoding", "Vit", "Resnet")
UNIONS = {"Engine": "vitral.deploy.engines.union:EngineConfig", "Export": "vitral.deploy.exported:Export"}
VERBS = ("bench", "check", "convert", "demo", "describe", "evaluate", "explain", "export", "pack", "predict", "train")
FIXED = (
    "sample", "fashion_mnist", "fashion_masked", "fashion_finetune", "fashion_tenth", "cifar10", "small_hundreds",
    "small_thousands",
)  # fmt: skip
FAMILIES = {
    "paper_imagenet": "B/16", "paper_imagenet21k": "L/16", "paper_jft": "H/14", "paper_masked": "B/16",
    "finetune_imagenet": "B/16", "finetune_cifar": "B/32", "finetune_flowers": "L/16", "finetune_vtab": "B/16",
    "photos": "S/16", "augreg_imagenet": "S/16", "augreg_imagenet21k": "B/16", "plain_imagenet": "S/16",
}  # fmt: skip


def names() -> dict[str, Any]:
    """Every public name and what it is."""
    import vitral

    found = {}
    for name in vitral.__all__:
        value = getattr(vitral, name)
        found[name] = "class" if inspect.isclass(value) else "function" if callable(value) else type(value).__name__
    return found


def options() -> dict[str, Any]:
    """Every option of every verb, from its help."""
    found = {}
    for verb in ("", *VERBS):
        _, text = output_of([*([verb] if verb else []), "--help"])
        for option in re.findall(r"^\s+(?:-\w, )?(--[a-z0-9-]+)", text, flags=re.MULTILINE):
            found[f"{verb} | {option}"] = True
        if not verb:
            found |= {f"verbs | {name}": True for name in re.findall(r"^  ([a-z]+)  ", text, flags=re.MULTILINE)}
    return found


def settings() -> dict[str, Any]:
    """Every path of the configs with its default and its limits, under every kind that may be chosen."""
    found: dict[str, Any] = {}
    for root in ROOTS:
        found |= dict(_fields(public(root), root))
    for root, where in UNIONS.items():
        found |= dict(_choices(reference(where), root))
    return found


def recipes() -> dict[str, Any]:
    """Every recipe that ships, resolved to its last field."""
    named = reference("vitral.recipes.choose:named")
    found: dict[str, Any] = {}
    for name, model in {**dict.fromkeys(FIXED, ""), **FAMILIES}.items():
        data = named(name, model).model_dump(mode="json")
        found |= {f"{name} {model} | {path}": value for path, value in leaves(data, "Recipe")}
    return found


def _fields(config: type[BaseModel], path: str) -> Iterator[tuple[str, Any]]:
    """The fields of a config, and of what may be chosen in them."""
    for name, field in config.model_fields.items():
        if name == "kind":
            continue
        default = "(required)" if field.default is PydanticUndefined else to_jsonable_python(field.default)
        place = f"{path}.{name}"
        kind = default.get("kind") if isinstance(default, dict) else None
        yield place, kind or ("(config)" if isinstance(default, dict) else default)
        if isinstance(default, dict):
            depth = place.count(".")  # a config may set other defaults for what is inside it
            yield from ((f"default at {depth} | {where}", value) for where, value in leaves(default, place))
        if field.metadata:
            yield f"limits | {place}", sorted(re.sub(r" at 0x\w+", "", repr(limit)) for limit in field.metadata)
        yield from _choices(field.annotation, place)


def _choices(annotation: Any, path: str) -> Iterator[tuple[str, Any]]:
    """The configs that an annotation names, by kind where they have one; words that may be chosen."""
    origin = get_origin(annotation)
    if isinstance(annotation, type) and origin is None and issubclass(annotation, BaseModel):
        kind = annotation.model_fields.get("kind")
        home = f"{path}:{kind.default}" if kind and isinstance(kind.default, str) else path
        yield f"exists | {home}", True
        yield from _fields(annotation, home)
    elif origin is Literal:
        yield f"words | {path}", [str(word) for word in get_args(annotation)]
    elif origin is Annotated:
        yield from _choices(get_args(annotation)[0], path)
    elif origin in {Union, UnionType, tuple, list}:
        for member in get_args(annotation):
            yield from _choices(member, path)
