"""Old names and new ones: golden asks by the old names, and translates for a tree that has the new ones.

A config path is written `Recipe.optimiser:adamw.rate`: fields with dots between them, each with the kind that is
chosen there. A pattern of NAMES matches the end of a path, with or without its kinds, and may have `*` in it; the
longest that matches counts.
"""

import json
import os
import sys
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from importlib import import_module
from typing import Any

Table = Mapping[str, str]

NAMES: dict[str, dict[str, str]] = {
    "names": {
        "Sight": "ImagePipeline",
        "build": "create_model",
        "Recipe.sight": "train_pipeline",
        "Batch.places": "indices",
    },  # public: "Sight": "ImagePipeline"; methods: "Predictor.logits": "logits"
    "references": {
        "vitral.deploy.engines.union:EngineConfig": "vitral.inference.engines.auto:EngineConfig",
        "vitral.deploy.exported:Export": "vitral.inference.exported:Export",
        "vitral.recipes.choose:named": "vitral.recipes.registry:get_recipe",
    },
    "fields": {  # "Recipe.optimiser": "optimizer", "optimiser.rate": "lr"; a new name may have dots
        "Recipe.optimiser": "optimizer",
        "optimiser.rate": "lr",
        "optimiser.decay": "weight_decay",
        "optimiser.epsilon": "eps",
        "data.where": "path",
        "data.share": "fraction",
        "Recipe.tuning": "finetune",
        "tuning.parts": "modules",
        "images.view": "crop",
        "images.still": "eval_crop",
        "images.scaling": "normalize",
        "scaling.deviation": "std",
        "task.weights": "class_weights",
        "length.fewest": "min_epochs",
        "length.most": "max_epochs",
        "Recipe.batch": "batch_size",
        "Recipe.portions": "microbatches",
        "Recipe.evaluate": "eval_every",
        "Recipe.stopping": "early_stopping",
        "Recipe.saving": "checkpoints",
        "saving.seconds": "every_seconds",
        "model.image": "image_size",
        "config.image": "image_size",
        "Vit.image": "image_size",
        "Resnet.image": "image_size",
        "Preprocessing.image": "image_size",
        "preprocessing.image": "image_size",
        "Preprocessing.view": "crop",
        "preprocessing.view": "crop",
        "Preprocessing.scaling": "normalize",
        "preprocessing.scaling": "normalize",
        "initial": "init",
        "standardisation": "standardization",
        "head.classes": "num_classes",
        "block.drop_path": "drop_path_rate",
        "mlp.gelu": "activation",
        "Export.quantisation": "quantization",
    },
    "kinds": {  # "view:centre": "center"
        "view:plain": "resize",
        "still:plain": "resize",
        "view:inception": "random_resized_crop",
        "view:centre": "center",
        "still:centre": "center",
        "tuning:everything": "full",
        "tuning:layers": "last_layers",
        "tuning:probed": "lp_ft",
        "augment:colour_jitter": "color_jitter",
        "task:masked": "masked_patches",
        "target:mean_colour": "mean_color",
        "length:shown": "images_seen",
        "average:exponential": "ema",
        "stopping:end": "none",
        "order:in_order": "sequential",
    },
    "options": {  # "train --batch": "--batch-size", or "--batch": "--batch-size" for every verb
        "--image": "--image-size",
        "--batch": "--batch-size",
        "train --from": "--weights",
    },
    "outputs": {  # keys in what verbs print, as "evaluate*.judge": "evaluator"
        "check*.remedy": "hint",
        "check*.modes.colour": "color",
        "check*.modes.grey": "gray",
        "*certificate.json.read.what": "software",
        "*certificate.json.written.what": "software",
        "evaluate*.found": "results",
        "evaluate*.interval": "ci95",
        "evaluate*.usual": "majority_baseline",
        "evaluate*.pairs": "confusion_counts",
        "evaluate*.answer": "prediction",
        "evaluate*.right": "correct",
        "evaluate*.answers": "predicted",
        "evaluate*.taken_for": "most_confused_with",
        "evaluate*.times": "most_confused_count",
        "evaluate*.spread": "std",
        "evaluate*.each": "per_seed",
        "evaluate*.flattered": "oracle",
        "evaluate*.left_out": "skipped",
        "evaluate*.training": "train_images",
        "evaluate*.image": "image_size",
        "evaluate*.trained": "is_train_size",
        "evaluate*.smallest": "min_size",
        "evaluate*.largest": "max_size",
        "evaluate*.calibration.error": "ece",
        "evaluate*.calibration.confidence": "mean_confidence",
        "explain*.answers": "predictions",
        "explain*.explained": "target",
        "explain*.tests": "faithfulness",
        "explain*.deletion_area": "deletion_auc",
        "explain*.insertion_area": "insertion_auc",
        "explain*.random_deletion_area": "random_deletion_auc",
        "explain*.random_insertion_area": "random_insertion_auc",
        "explain*.standing": "verdict",
        "explain*.lacks": "unavailable",
        "explain*.refused": "errors",
    },
    "values": {  # leaves that are names
        "mlp.gelu=erf": "gelu",
        "mlp.gelu=tanh": "gelu_tanh",
        "mlp.gelu=quick": "quick_gelu",
    },
}

# Differences that are meant: a pattern of "section | key", and the reason.
EXPECTED: dict[str, str] = {
    "names | ServeError": "nothing raises it until there is a server",
    "settings | *Bundle.format": "bundles are of format 4; older ones are read by core/formats.py",
    "settings | *Export.format": "exports are of format 2; 1 is read by core/formats.py",
    "recipes | paper_imagenet21k* | Recipe.clip": "Table 3 clips on ImageNet alone",
    "recipes | paper_jft* | Recipe.clip": "Table 3 clips on ImageNet alone",
    "settings | *Recipe.clip": "clip=none is possible",
    "verbs | describe* | equations": "the sentence on positions is plain technical English",
    "verbs | describe text | *": "the sentence on positions is plain technical English",
    "* | *pool:cls": "the pool has a field now, which is listed instead",
    "* | *position:sincos2d": "the position has a field now, which is listed instead",
    "settings | words | *": "more choices",
    "training | masked * | best weights": "masked patches keep the weights of the lowest loss",
    "training | tuning * | evaluations": "the weights at step 0 are evaluated first",
    "training | tuning probed | best weights": "the weights at step 0 are evaluated first",
    "verbs | check* | findings.0:enlarged*": "the recipe trains small photos at a size near theirs",
    "verbs | check* | notes": "the recipe trains small photos at a size near theirs",
    "verbs | check* | resizing.*": "the recipe trains small photos at a size near theirs",
    "verbs | explain* | images.*.unavailable": "a sentence, reworded",
    "verbs | file */certificate.json | library": "a sentence, reworded",
    "verbs | file */certificate.json | images": "a sentence, reworded",
    "verbs | file */config.json | format": "bundles are of format 4",
    "verbs | file */export.json | *.format": "exports are of format 2",
    "verbs | file */export.json | *.quantisation": "spelled quantization",
    "verbs | file */export.json | *.certificate.*": "sentences, reworded",
    "verbs | file */export.json | *.resizing": "a sentence, reworded",
    "verbs | file */export.json | *.files.*": "the preprocessing in the metadata of the file has new names",
    "verbs | file */export.json | *.runner.difference": "the runner takes its softmax in float64",
}

BEFORE_VARIABLE = "GOLDEN_BEFORE"  # set while the old tree is asked


def table(name: str) -> Table:
    """The renames that hold in the tree that is asked."""
    return {} if os.environ.get(BEFORE_VARIABLE) else NAMES[name]


def best(renames: Table, path: str) -> str | None:
    """What the longest pattern says that matches the end of a path."""
    found = [pattern for pattern in renames if fnmatchcase(path, pattern) or fnmatchcase(path, f"*.{pattern}")]
    return renames[max(found, key=len)] if found else None


def without_kinds(path: str) -> str:
    return ".".join(segment.partition(":")[0] for segment in path.split("."))


def translated_path(path: str, fields: Table, kinds: Table) -> str:
    """A config path in the new names."""
    segments, made = path.split("."), []
    for depth, segment in enumerate(segments, start=1):
        name, colon, kind = segment.partition(":")
        before = ".".join([*segments[: depth - 1], name])
        new = best(fields, before) or best(fields, without_kinds(before)) or name
        chosen = f"{before}:{kind}"
        bare = f"{without_kinds(before)}:{kind}"
        made.append(new + colon + ((best(kinds, chosen) or best(kinds, bare) or kind) if colon else ""))
    return ".".join(made)


def translated_value(path: str, value: Any, tables: Mapping[str, Table]) -> Any:
    """A leaf that may be the name of a kind or of a choice."""
    if not isinstance(value, str):
        return value
    for name in ("kinds", "values"):
        joint = ":" if name == "kinds" else "="
        renames = tables[name]
        found = best(renames, f"{path}{joint}{value}") or best(renames, f"{without_kinds(path)}{joint}{value}")
        if found is not None:
            return found
    return value


def here(path: str) -> str:
    """A config path in the names of the tree that is asked."""
    return translated_path(path, table("fields"), table("kinds"))


def setting(text: str, root: str = "Recipe") -> str:
    """`optimiser:adamw` or `optimiser:adamw.rate=1e-3` as the tree takes it: `optimizer=adamw`, `optimizer.lr=1e-3`."""
    path, equals, value = text.partition("=")
    new = here(f"{root}.{path}").partition(".")[2]
    if not equals:
        head, _, kind = new.rpartition(":")
        return f"{without_kinds(head)}={kind}"
    return f"{without_kinds(new)}={value_here(f'{root}.{path}', value)}"


def value_here(path: str, text: str) -> str:
    """The value of a setting, in which fields and kinds may have names too."""
    try:
        value = json.loads(text)
    except ValueError:
        value = text
    tables = {"kinds": table("kinds"), "values": table("values")}
    if isinstance(value, dict | list):
        return json.dumps(data_here(path, value))
    return str(translated_value(path, text, tables))


def data_here(path: str, value: Any) -> Any:
    """Plain data of a config in the names of the tree that is asked."""
    if isinstance(value, list):
        return [data_here(path, each) for each in value]
    if not isinstance(value, dict):
        return translated_value(path, value, {"kinds": table("kinds"), "values": table("values")})
    home = f"{path}:{value['kind']}" if "kind" in value else path
    made = {}
    for name, inner in value.items():
        if name == "kind":
            made[name] = here(home).rpartition(":")[2]
        else:
            made[here(f"{home}.{name}").rpartition(".")[2]] = data_here(f"{home}.{name}", inner)
    return made


def config_data(root: str, settings: Sequence[str]) -> dict[str, Any]:
    """Settings as the plain data of a config, in the names of the tree; what is not set is left to its defaults."""
    data: dict[str, Any] = {}
    for text in settings:
        path, equals, value = text.partition("=")
        *above, last = path.split(".")
        place = data
        for segment in above:
            name, colon, kind = segment.partition(":")
            place = place.setdefault(name, {"kind": kind} if colon else {})
        name, colon, kind = last.partition(":")
        if equals:
            place[name] = json.loads(value)
        else:
            place.setdefault(name, {"kind": kind})
    renamed = data_here(root, data)
    assert isinstance(renamed, dict)
    return renamed


def public(name: str) -> Any:
    """A public name of vitral, or a method of one as `Predictor.logits`."""
    value: Any = import_module("vitral")
    done: list[str] = []
    for part in name.split("."):
        done.append(part)
        value = getattr(value, table("names").get(".".join(done), part))
    return value


def method(thing: object, name: str) -> Any:
    """The method or attribute that had this name, as `Predictor.logits`, of a thing."""
    return getattr(thing, table("names").get(name, name.rpartition(".")[2]))


def reference(name: str) -> Any:
    """What `module:name` names, which is not public."""
    module, _, inside = table("references").get(name, name).partition(":")
    return getattr(import_module(module), inside)


def refused(error: Exception) -> str:
    """An answer that the tree does not give. Said aloud, for in the old tree it is a mistake in the question."""
    print(f"  refused: {type(error).__name__}: {error}", file=sys.stderr)
    return f"refused: {type(error).__name__}"


def words_here(words: Sequence[str]) -> list[str]:
    """A command line with its options in the names of the tree; `--set` takes a setting in old names."""
    verb, options = words[0], table("options")
    root = "Vit" if verb in {"describe", "convert"} else "Recipe"
    made: list[str] = []
    for place, word in enumerate(words):
        if place and words[place - 1] == "--set":
            made.append(setting(word, root))
        else:
            made.append(options.get(f"{verb} {word}", options.get(word, word)) if word.startswith("--") else word)
    return made
