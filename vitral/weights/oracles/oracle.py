"""Run another library on a file in a separate process, and take its outputs: what our outputs are compared with.

A library is a module of this folder, run as `python -m vitral.weights.oracles.timm FOLDER`. It finds `request.json` and
`images.safetensors` in the folder and writes `outputs.safetensors` and `answer.json`. Nothing of it is imported here,
no network is used, and a pickle is handed over as safetensors.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from safetensors.torch import load_file, save_file
from torch import Tensor

IMPORT_ROOT = Path(__file__).resolve().parents[3]  # the folder that this vitral was imported from
REQUEST, IMAGES, OUTPUTS, ANSWER = "request.json", "images.safetensors", "outputs.safetensors", "answer.json"
TIMEOUT = 1800  # seconds
OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


class ModelOutputs(NamedTuple):
    """The outputs of a model for some images."""

    tokens: Tensor  # (B, L, D), after the last norm, in our order
    logits: Tensor | None  # (B, K): logits, or the vector that a model without a head makes of an image
    others: tuple[Tensor, ...] = ()  # tokens by other definitions, such as before the last norm


class OracleRequest(NamedTuple):
    """A module of this folder, and what it needs to open the model: paths, an architecture, arguments."""

    module: str
    arguments: Mapping[str, Any]
    reads: str = ""  # whose files the library reads, if they are not its own: `Google's npz`


class NoOracleError(Exception):
    """There is no library that could run the file; the text says why."""


class OracleAnswer(NamedTuple):
    """The library with its version, and its outputs by the index of the batch; or why there are none."""

    library: str  # `timm 1.0.30`; empty if it could not be imported
    outputs: Mapping[int, ModelOutputs]
    reason: str  # empty if there are outputs
    opened: bool  # whether the library accepted the file
    own: bool = True  # whether the file is the library's own, not one that it reads too


def run_oracle(request: OracleRequest, images: Sequence[Tensor]) -> OracleAnswer:
    """The library's outputs for batches of images, (B, C, H, W) each; a batch that it refuses has none."""
    with TemporaryDirectory(prefix="vitral-oracle-") as home:
        folder = Path(home)
        (folder / REQUEST).write_text(json.dumps(request.arguments), encoding="utf-8")
        save_file({str(index): batch.contiguous() for index, batch in enumerate(images)}, folder / IMAGES)
        try:
            code, said = run_process(request.module, folder)
        except subprocess.TimeoutExpired:
            return OracleAnswer("", {}, f"{request.module} took more than {TIMEOUT} s", opened=False)
        if not (folder / ANSWER).is_file():
            reason = f"the process of {request.module} ended with {code}: {_last_line(said)}"
            return OracleAnswer("", {}, reason, opened=False)
        answer = json.loads((folder / ANSWER).read_bytes())
        found = load_file(folder / OUTPUTS) if (folder / OUTPUTS).is_file() else {}
        reads = f", which reads {request.reads}" if answer["library"] and request.reads else ""
        library, own = answer["library"] + reads, not request.reads
        return OracleAnswer(library, dict(_outputs(found)), answer["reason"], answer["opened"], own)


def run_process(module: str, folder: Path) -> tuple[int, bytes]:
    """Answer the request in a folder by a module of this package; the exit code and the messages of its process."""
    command = [sys.executable, "-P", "-m", f"{__package__}.{module}", str(folder)]
    done = subprocess.run(
        command, env=environment(), stdin=subprocess.DEVNULL, capture_output=True, timeout=TIMEOUT, check=False
    )
    return done.returncode, done.stderr


def environment() -> dict[str, str]:
    """The environment of an oracle's process: this vitral, and no network."""
    path = [str(IMPORT_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | OFFLINE | {"PYTHONPATH": os.pathsep.join(path)}


def _outputs(found: Mapping[str, Tensor]) -> Iterator[tuple[int, ModelOutputs]]:
    for index in sorted({name.partition(".")[0] for name in found}):
        names = [f"{index}.tokens.{which}" for which in range(len(found))]
        tokens = [found[name] for name in names if name in found]
        yield int(index), ModelOutputs(tokens[0], found.get(f"{index}.logits"), tuple(tokens[1:]))


def _last_line(text: bytes) -> str:
    lines = text.decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else "no message"
