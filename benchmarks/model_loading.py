"""`python -m benchmarks.model_loading`: from the start of a process to the first answer of a ViT-B/16 on disk.

timm writes its weights as a .safetensors file, which timm and we open, and an export of ours is made of it beforehand;
transformers writes a folder, which it and we open. Every process is a new one, and they take turns. All have their
modules as bytecode, as installed packages have: a checkout writes it when it is warmed up. Needs the Python of `make
bench`.
"""

import argparse
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import vitral
from benchmarks.__main__ import machine, say
from benchmarks.compare import ratio

REPEATS, GOAL, READY = 7, 2.5, 1.3
JUDGES = 40  # images that judge the export

WRITE_TIMM = """
from vitral.weights.oracles.torchvision_stub import stub_torchvision
stub_torchvision()
import timm
from safetensors.torch import save_file
save_file(timm.create_model("vit_base_patch16_224").state_dict(), {path!r})
"""
WRITE_TRANSFORMERS = """
from transformers import ViTConfig, ViTForImageClassification
ViTForImageClassification(ViTConfig(num_labels=1000)).save_pretrained({path!r})
"""
ANSWER = """
with torch.inference_mode():
    print(model(torch.zeros(1, 3, 224, 224)){logits}.argmax().item(), flush=True)
"""
TORCH = "import torch\nprint(torch, flush=True)"
OURS_LOADS = "import vitral\nmodel, _ = vitral.load({path!r})\n"
OURS_READY = OURS_LOADS + "print(type(model), flush=True)"
OURS = OURS_LOADS + "import torch" + ANSWER.format(logits="")
OURS_EXPORTED = """
import vitral, numpy
predictor = vitral.Predictor({path!r})
print(predictor.logits(numpy.zeros((1, 224, 224, 3), dtype=numpy.uint8)).argmax().item(), flush=True)
"""
TIMM = """
from vitral.weights.oracles.torchvision_stub import stub_torchvision
stub_torchvision()
import timm, torch
from safetensors.torch import load_file
model = timm.create_model("vit_base_patch16_224").eval()
model.load_state_dict(load_file({path!r}))
""" + ANSWER.format(logits="")
TRANSFORMERS = """
import torch
from transformers import ViTForImageClassification
model = ViTForImageClassification.from_pretrained({path!r}).eval()
""" + ANSWER.format(logits=".logits")


def run(script: str) -> None:
    """Run a script in a new process."""
    subprocess.run([sys.executable, "-c", script], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def seconds_of(script: str) -> float:
    """How long it is from the start of a new process to the first line that its script prints."""
    words, quiet = [sys.executable, "-c", script], subprocess.DEVNULL
    usual = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    started = time.perf_counter()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=quiet, env=usual) as process:
        assert process.stdout
        first = process.stdout.readline()
        seconds = time.perf_counter() - started
        process.stdout.read()
    if process.returncode or not first:
        raise RuntimeError(f"ended with exit code {process.returncode}, and printed {first!r}: {script}")
    return seconds


def measured(scripts: dict[str, str], repeats: int) -> dict[str, list[float]]:
    """Seconds to the answer of each script in each round; before the first, all files are in the machine's memory."""
    runs = {name: partial(seconds_of, script) for name, script in scripts.items()}
    for name, run in runs.items():
        say(f"warming up: {name} {run():.2f} s")
    seconds: dict[str, list[float]] = {name: [] for name in scripts}
    for number in range(repeats):
        say(f"round {number + 1} of {repeats}")
        for name in list(runs) if number % 2 else list(reversed(runs)):
            seconds[name].append(runs[name]())
    return seconds


def measure(repeats: int = REPEATS) -> str:
    """The table."""
    with TemporaryDirectory() as home:
        file, folder = str(Path(home, "timm.safetensors")), str(Path(home, "huggingface"))
        run(WRITE_TIMM.format(path=file))
        run(WRITE_TRANSFORMERS.format(path=folder))
        exported = vitral.export(file, "openvino", out=str(Path(home, "exported")), images=JUDGES).folder
        scripts = {
            "import torch": TORCH,
            "vitral, ready": OURS_READY.format(path=file),
            "vitral, timm's file": OURS.format(path=file),
            "vitral, an export": OURS_EXPORTED.format(path=str(exported)),
            "timm": TIMM.format(path=file),
            "vitral, transformers' folder": OURS.format(path=folder),
            "transformers": TRANSFORMERS.format(path=folder),
        }
        seconds = measured(scripts, repeats)
    lines = [f"  {name:<28} {median(times):.2f} s" for name, times in seconds.items()]
    for ours, theirs in (
        ("vitral, timm's file", "timm"),
        ("vitral, an export", "timm"),
        ("vitral, transformers' folder", "transformers"),
    ):
        found = ratio(seconds[ours], seconds[theirs])
        goal = f"; goal: {GOAL}: {'met' if found.median >= GOAL else 'NOT met'}" if theirs == "timm" else ""
        lines.append(f"  {ours}: {found.median:.2f} x as fast as {theirs} ({found.low:.2f} to {found.high:.2f}){goal}")
    ready = ratio(seconds["import torch"], seconds["vitral, ready"]).median
    lines.append(
        f"  ready in {ready:.2f} x what torch takes to import; "
        f"goal: at most {READY}: {'met' if ready <= READY else 'NOT met'}"
    )
    return "\n".join(["start of a process to the first answer of a ViT-B/16:", *lines])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=REPEATS)
    given = parser.parse_args()
    print(machine())
    print(measure(given.repeats))
