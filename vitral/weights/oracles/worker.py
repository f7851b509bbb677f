"""What the process of an oracle does, whatever the library: import it, open the model, run it, write the outputs.

Only the standard library is imported before the library itself, so a missing one is found at once.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What a library says of some images."""

    tokens: Sequence[
        Any
    ]  # (B, L, D) by every definition that it has: as it returns them, before the last norm, after it
    logits: Any  # (B, K): logits, or the vector that it makes of an image; None where there is neither


Runner = Callable[[Any], Answer]  # images (B, C, H, W) to the answer


def answer(
    package: str, load_library: Callable[[], Any], open_model: Callable[[Any, Mapping[str, Any]], Runner]
) -> None:
    """Answer the request in the folder that the command line names."""
    folder = Path(sys.argv[1])
    found: dict[str, Any] = {"library": "", "opened": False, "reason": ""}
    try:
        code = load_library()
        found["library"] = f"{package} {_version(package)}"
        run = open_model(code, json.loads((folder / "request.json").read_bytes()))
        found["opened"] = True
        found["reason"] = _run(run, folder)
    except ModuleNotFoundError as error:
        found["reason"] = f"{error.name} is not installed"
    except Exception as error:  # each library has its own errors, and an import may fail in many ways
        found["reason"] = first_line(error)
    (folder / "answer.json").write_text(json.dumps(found), encoding="utf-8")


def _run(run: Runner, folder: Path) -> str:
    """Write the outputs for every batch that the library accepts; why it accepts none, if so."""
    import torch
    from safetensors.torch import load_file, save_file

    outputs: dict[str, Any] = {}
    reason = ""
    for index, images in load_file(folder / "images.safetensors").items():
        try:
            with torch.no_grad():
                found = run(images)
        except Exception as error:  # images of a size that the library does not take
            reason = first_line(error)
            continue
        outputs |= {f"{index}.tokens.{which}": each for which, each in enumerate(found.tokens)}
        outputs |= {f"{index}.logits": found.logits} if found.logits is not None else {}
    save_file(
        {name: each.float().contiguous().clone() for name, each in outputs.items()}, folder / "outputs.safetensors"
    )
    return "" if outputs else reason


def first_line(error: Exception) -> str:
    """The first line of an error's message, or its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:  # not installed by pip
        return "of unknown version"
