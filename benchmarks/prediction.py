"""`python -m benchmarks.prediction`: from the start of a process to the first answer, and from files to answers.

The first part starts new processes in turn that name what is on a JPEG with a ViT-B/16 from the disk: `vitral predict`
with each engine and with exports that were made beforehand, and timm by a script as one would write it. The second part
has S/16 answer photos in files, 32 at a time, and the same photos in memory, already decoded. Needs the Python of
`make bench`.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch

import vitral
from benchmarks.__main__ import say
from benchmarks.compare import Case, Length, ratio, run_interleaved, throughput
from benchmarks.model_loading import WRITE_TIMM, measured, run
from benchmarks.photos import jpeg
from vitral.core.machine import cpu_count
from vitral.inference.batches import read_batches
from vitral.inference.engines.openvino import OpenVino
from vitral.inference.inputs import FileSource, ImageRef
from vitral.inference.predictor import Predictor
from vitral.runs.bench import describe_machine
from vitral.runs.bench_worker import load_model
from vitral.weights.bundle import write_bundle

START, FILES = 2.0, 0.95  # the goals: times as fast as timm, share of the rate in memory
PHOTOS, BATCH = 256, 32
EXPORTED, JUDGES = ("onnx", "openvino"), 40  # kinds, and images that judge each: what is measured is its start
FOLDER = "VITRAL_BENCH_PHOTOS"  # where the photos are
FROM_FILES, IN_MEMORY = "from files", "in memory"
CASES = (Case(f"S/16, batch {BATCH}", PHOTOS, FILES, (FROM_FILES, IN_MEMORY), (IN_MEMORY,)),)

OURS = "from vitral.cli import main\nmain(['predict', {model!r}, {image!r}, '--engine', {engine!r}, '--quiet'])"
TIMM = """
from vitral.weights.oracles.torchvision_stub import stub_torchvision
stub_torchvision()
import numpy, timm, torch
from PIL import Image
from safetensors.torch import load_file
model = timm.create_model("vit_base_patch16_224").eval()
model.load_state_dict(load_file({weights!r}))
picture = Image.open({image!r}).convert("RGB").resize((224, 224), Image.Resampling.BILINEAR)
pixels = torch.from_numpy(numpy.array(picture)).permute(2, 0, 1)[None] / 127.5 - 1
with torch.inference_mode():
    chances, classes = model(pixels).softmax(dim=1).topk(5)
print(classes.tolist(), chances.tolist(), flush=True)
"""


def starting(repeats: int) -> str:
    """Seconds to the first answer, of each engine and of timm."""
    with TemporaryDirectory() as home:
        image, bundle, weights = Path(home, "photo.jpg"), Path(home, "bundle"), Path(home, "timm.safetensors")
        image.write_bytes(jpeg(375, 500, 0))
        model, facts = load_model("B/16")
        torch.nn.init.normal_(model.get_parameter("head.linear.weight"), std=0.05)  # of zeros no export is made
        write_bundle(bundle, facts, model.state_dict(), "")
        run(WRITE_TIMM.format(path=str(weights)))
        words = {"model": str(bundle), "image": str(image)}
        engines = ("auto", "eager", "onnxruntime", "openvino")
        scripts = {f"vitral predict, {engine}": OURS.format(engine=engine, **words) for engine in engines}
        for kind in EXPORTED:
            folder = vitral.export(str(bundle), kind, out=str(Path(home, kind)), images=JUDGES).folder
            scripts[f"vitral predict, {kind} export"] = OURS.format(model=str(folder), image=str(image), engine="auto")
        scripts["timm"] = TIMM.format(weights=str(weights), image=str(image))
        seconds = measured(scripts, repeats)
    lines = ["start of a process to the first answer of a ViT-B/16:"]
    for name, times in seconds.items():
        found = ratio(times, seconds["timm"])
        lines.append(
            f"  {name:<28} {median(times):.2f} s  {found.median:.2f} x timm ({found.low:.2f} to {found.high:.2f})"
        )
    for name in ("auto", *(f"{kind} export" for kind in EXPORTED)):
        reached = ratio(seconds[f"vitral predict, {name}"], seconds["timm"]).median
        lines.append(f"  goal: {START} x with {name}: {'met' if reached >= START else 'NOT met'}")
    return "\n".join(lines)


def prepare(engine: str, case: Case) -> Callable[[], object]:
    """A turn: all photos once."""
    paths = sorted(Path(os.environ[FOLDER]).iterdir())
    model = load_model("S/16")
    predictor, needs = Predictor(model, engine=OpenVino()), model.bundle.preprocessing
    images = [ImageRef(path.name, FileSource(str(path))) for path in paths]
    predictor.warm_up(BATCH)
    if engine == FROM_FILES:
        return lambda: [predictor.logits(batch.pixels) for batch in read_batches(iter(images), needs, BATCH)]
    pixels = np.stack([needs.pixels(path.read_bytes(), path.name) for path in paths])  # (PHOTOS, H, W, C)
    return lambda: [predictor.logits(pixels[start : start + BATCH]) for start in range(0, PHOTOS, BATCH)]


def from_files(length: Length) -> str:
    """The rate from files beside that in memory."""
    (case,) = CASES
    with TemporaryDirectory() as home:
        for number in range(PHOTOS):
            Path(home, f"{number:03}.jpg").write_bytes(jpeg(375, 500, number))
        os.environ[FOLDER] = home
        seconds = run_interleaved("benchmarks.prediction", case, case.engines, length, say)
    rates = {name: throughput(case, times) for name, times in seconds.items()}
    found = ratio(seconds[FROM_FILES], seconds[IN_MEMORY])
    met = "met" if found.median >= FILES else "NOT met"
    return (
        f"{case.name}, {PHOTOS} photos of 500x375: {rates[FROM_FILES]:.2f}/s from files, "
        f"{rates[IN_MEMORY]:.2f}/s in memory\n"
        f"  {found.median:.3f} of it ({found.low:.3f} to {found.high:.3f}); goal: {FILES}: {met}"
    )


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.prediction", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", default="", choices=["", "starting", "files"])
    parser.add_argument("--repeats", type=int, default=7, help="processes of each kind")
    parser.add_argument("--rounds", type=int, default=4, help="turns from files and in memory, in each of two heats")
    given = parser.parse_args(words)
    parts = {"starting": partial(starting, given.repeats), "files": partial(from_files, Length(2, given.rounds))}
    print(describe_machine(cpu_count()), flush=True)
    for name, part in parts.items():
        if given.only in {"", name}:
            print(part(), flush=True)


if __name__ == "__main__":
    main()
