"""Verbs: what each prints for programs, without times, places and versions; and the files that some leave."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file

from tools.golden_facts.command import output_of
from tools.golden_facts.flat import leaves, masked
from tools.golden_facts.images import write_photos
from tools.golden_facts.models import hash_of

EAGER = ("--engine", "eager", "--batch", "8")
BENCH = ("--rounds", "1", "--threads", "1", "--json")
QUIET = ("--no-cache", "--batch", "16", "--workers", "0", "--device", "cpu", "--json")


def commands(before: Path) -> dict[str, tuple[str, ...]]:
    """Command lines by name."""
    classify, resnet, hybrid = (str(before / "bundles" / name) for name in ("classify", "resnet", "hybrid"))
    photo = "photos/test/dark/00.jpg"
    return {
        "describe B/16": ("describe", "B/16", "--json"),
        "describe R50+L/32": ("describe", "R50+L/32", "--image", "384", "--json"),
        "describe R50x1": ("describe", "R50x1", "--json"),
        "describe set": ("describe", "S/16", "--json", "--set", "mixer.heads=3", "--set", "position:rope2d"),
        "describe bundle": ("describe", classify, "--json"),
        "describe text": ("describe", "Ti/16"),
        "check": ("check", "photos", "--json", "--workers", "0"),
        "evaluate": ("evaluate", classify, "photos", "--with", "accuracy,knn,fewshot,linear,resolution", *QUIET),
        "evaluate val": ("evaluate", hybrid, "photos", "--split", "val", "--seed", "3", *QUIET),
        "evaluate resnet": ("evaluate", resnet, "photos", "--with", "accuracy,knn", *QUIET),
        "explain": ("explain", classify, photo, "--json", "--out", "page.html"),
        "explain quick": ("explain", hybrid, photo, "photos/test/bright", "--quick", "--json", "--out", "quick.html"),
        "predict table": ("predict", classify, "photos/test", *EAGER),
        "predict json": ("predict", classify, "photos/test", "--format", "json", "--top", "1", *EAGER),
        "predict jsonl": ("predict", classify, "photos/test", "--format", "jsonl", *EAGER),
        "predict csv": ("predict", resnet, "photos/val", "--format", "csv", *EAGER),
        "predict merge": ("predict", classify, "photos/test", "--format", "jsonl", "--merge", "1", *EAGER),
        "predict shard": ("predict", classify, "photos", "--format", "jsonl", "--shard", "2/3", *EAGER),
        "predict features": ("predict", classify, "photos/test", "--features", "features.npz", *EAGER),
        "predict export": ("predict", str(before / "exports/onnx"), "photos/test", "--format", "jsonl"),
        "pack": ("pack", "photos", "packed", "--shard-size", "20KB"),
        "check packed": ("check", "packed", "--json", "--workers", "0"),
        **{
            f"convert {to}": ("convert", classify, f"as-{to}", "--to", to)
            for to in ("vitral", "google", "timm", "huggingface", "torchvision", "vit-pytorch")
        },
        "convert larger": ("convert", classify, "larger", "--image", "32", "--channels", "1"),
        "export onnx": ("export", classify, "--to", "onnx", "--data", "photos", "--out", "out-onnx"),
        "export openvino": ("export", classify, "--to", "openvino", "--data", "photos", "--out", "out-openvino"),
        "predict openvino": ("predict", "out-openvino", "photos/test", "--format", "jsonl"),
        "bench": ("bench", "--models", classify, "--batches", "2", "--engines", "eager", *BENCH),
        "missing": ("describe", "Q/16", "--json"),
        "version": ("--version",),
    }


def verbs(work: Path, before: Path, tree: Path) -> dict[str, Any]:
    """Every leaf of what the command lines print."""
    write_photos(work / "photos")
    places = {str(before): "<before>", str(work): "<work>", str(tree): "<tree>"}
    found: dict[str, Any] = {}
    for name, words in commands(before).items():
        print(f"  {name}", file=sys.stderr)
        code, text = output_of([*words, "--quiet"])
        found[f"{name} | exit"] = code
        for path, value in leaves(parsed(text), ""):
            timed = name == "bench" and not isinstance(value, str)  # all of its numbers
            found[f"{name} | {path}"] = "<measured>" if timed else masked(path, value, places)
    return found | files(work, places)


def parsed(text: str) -> Any:
    """What was printed: JSON, lines of JSON, or lines of text."""
    try:
        return json.loads(text)
    except ValueError:
        lines = text.splitlines()
    try:
        return {str(number): json.loads(line) for number, line in enumerate(lines)}
    except ValueError:
        return {str(number): line.rstrip() for number, line in enumerate(lines)}


def files(work: Path, places: dict[str, str]) -> dict[str, Any]:
    """What was written: arrays by their hash, certificates and notes leaf by leaf."""
    found: dict[str, Any] = {}
    for path in sorted(work.rglob("*")):
        name = str(path.relative_to(work))
        if not path.is_file() or name.startswith(("photos", "home")):
            continue
        found[f"file {name} | exists"] = True
        if path.suffix == ".npz":
            with np.load(path) as arrays:
                found[f"file {name} | hash"] = hash_of(
                    {key: arrays[key] for key in arrays.files if arrays[key].dtype.kind in "fiu"}
                )
        elif path.suffix == ".safetensors":
            weights: dict[str, np.ndarray[Any, Any]] = load_file(path)
            found[f"file {name} | hash"] = hash_of(weights)
        elif path.suffix in {".tar", ".txt"}:
            found[f"file {name} | hash"] = hashlib.sha256(path.read_bytes()).hexdigest()
        elif path.suffix == ".json":
            data = json.loads(path.read_text(encoding="utf-8"))
            found |= {f"file {name} | {place}": masked(place, value, places) for place, value in leaves(data, "")}
    return found
