"""The runner beside an export: a short script that answers for image files, with neither Vitral nor, mostly, torch.

The runner of an export, tried on real files before the export gets its name.  K numbers of an answer.
"""

import json
import subprocess
import sys
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitral import __version__
from vitral.core.activation import Activation, probabilities
from vitral.core.config import Size
from vitral.core.errors import VitralError
from vitral.data.decoding.decode import FULL, decode, opened
from vitral.data.decoding.header import recognize
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.image_ops import picture
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import resize
from vitral.exporters.targets import ExportPlan, Target
from vitral.exporters.verify import ExportImages, sample_evenly
from vitral.inference.engines.engine import Engine, FloatArray, run_in_batches
from vitral.inference.exported import RunnerCheck

FILE = "run.py"
SECONDS = 600  # that it may take; far beyond what it needs
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of pictures that it reads as Vitral does
ENGINES = {
    "onnx": """\
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else importing onnxruntime keeps notes for its makers
import onnxruntime
""",
    "openvino": """\
sys.modules["openvino_telemetry"] = None  # else importing openvino sends word to its makers
import openvino
""",
    "torch": """\
import torch
""",
}
OPENED = {
    "onnx": """\
session = onnxruntime.InferenceSession(HERE / "model.onnx", providers=["CPUExecutionProvider"])
run = lambda pixels: session.run(None, {"pixels": pixels})[0]
""",
    "openvino": """\
model = openvino.Core().compile_model(str(HERE / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
run = lambda pixels: model({"pixels": pixels})[0]
""",
    "torch": """\
module = torch.export.load(HERE / "model.pt2").module()
run = lambda pixels: module(torch.from_numpy(pixels)).numpy(force=True)
""",
}
SCRIPT = '''\
"""What is in pictures: python run.py PICTURE...   Needs numpy, pillow and {package}; written by vitral {version}."""
import json, os, sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
{engine}
HERE = Path(__file__).parent
NOTES = json.loads((HERE / "export.json").read_text(encoding="utf-8"))
{opened}

def pixels(path):
    """A picture as the model takes it: bytes ({sides}, {channels})."""
    with Image.open(path) as file:
        if file.mode not in {modes}:
            sys.exit(f"{{path}}: pixels of mode {{file.mode}} are for `vitral predict`")
{before}        image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, {background}), image.convert("RGBA"))
    image = image.convert("RGB"){gray}
{after}    return np.asarray(image).reshape(image.height, image.width, {channels})


for path in sys.argv[1:]:
    numbers = run({batch})[0]
{answer}'''
# What is done to a picture before it is decoded, and after.
PLAIN = """\
        file.draft(None, ({need.width}, {need.height}))  # a JPEG is read at the smallest scale that serves
"""
TURNED = """\
        turned = file.getexif().get(0x0112, 1) >= 5
"""
PLAIN_TURNED = """\
        sides = ({need.width}, {need.height})
"""
CENTER = """\
        wide, high = file.size[::-1] if turned else file.size
        sides = max({filled.width}, {filled.height} * wide // high), max({filled.height}, {filled.width} * high // wide)
"""
SCALED = """\
        sides = round(sides[0] * {size.width} / {shown.width}), round(sides[1] * {size.height} / {shown.height})
"""
DRAFT = """\
        file.draft(None, sides[::-1] if turned else sides)  # a JPEG is read at the smallest scale that serves
"""
RESIZED = """\
    image = image.resize(({size.width}, {size.height}), Image.Resampling.{filter})
"""
CROPPED = """\
    left, top = round((sides[0] - {size.width}) / 2), round((sides[1] - {size.height}) / 2)
    image = image.resize(sides, Image.Resampling.{filter})
    image = image.crop((left, top, left + {size.width}, top + {size.height}))
"""
PLACED = """\
    rows = np.arange({size.height}) + round((sides[1] - {size.height}) / 2)
    columns = np.arange({size.width}) + round((sides[0] - {size.width}) / 2)
    image = np.asarray(image.resize(sides, Image.Resampling.{filter}))[rows.clip(0, sides[1] - 1)]
    image = Image.fromarray(image[:, columns.clip(0, sides[0] - 1)])  # edges are repeated where the picture ends
"""
SOFTMAX = """\
    chances, label = np.exp(numbers - numbers.max()), int(numbers.argmax())
    chance = float(chances[label] / chances.sum())
"""
SIGMOID = """\
    label = int(numbers.argmax())
    chance = float(np.exp(-np.logaddexp(0, -numbers[label])))
"""
CLASSES = """\
    print(json.dumps({"image": path, "label": label, "class": NOTES["classes"][label], "chance": round(chance, 6)}))
"""
FEATURES = """\
    print(json.dumps({"image": path, "features": numbers.tolist()}))
"""
# What is not to be had where the runner runs, refused in the process that tries it.
WITHOUT = """
import runpy, sys
class Refusal:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {refused!r}:
            raise ImportError(f"{{name}} is not to be had here", name=name)
sys.meta_path.insert(0, Refusal())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def runner_script(target: Target, plan: ExportPlan) -> str:
    """The runner of an export."""
    needs, pixels = plan.preprocessing, "pixels(path)[None]"
    before, after = _seeing(plan)
    return SCRIPT.format(
        package=target.package,
        modes=MODES,
        version=__version__,
        engine=ENGINES[target.kind],
        opened=OPENED[target.kind],
        sides="height, width" if plan.input_size == "dynamic" else ", ".join(map(str, plan.input_size)),
        channels=needs.decoding.channels,
        background=(*needs.decoding.background, 255),
        before=before,
        gray='.convert("L")' if needs.decoding.channels == 1 else "",
        after=after,
        batch=pixels if plan.batch_size == "dynamic" else f"np.repeat({pixels}, {plan.batch_size}, axis=0)",
        answer=_answer(plan),
    )


def _answer(plan: ExportPlan) -> str:
    """The lines that print the answer for one image."""
    if plan.graph.answer != "logits":
        return FEATURES
    return (SIGMOID if plan.activation == "sigmoid" else SOFTMAX) + CLASSES


def _seeing(plan: ExportPlan) -> tuple[str, str]:
    """What is done to a picture before it is decoded and after, so that it is as the model takes it."""
    view, image, incoming = plan.preprocessing.crop, plan.preprocessing.image_size, plan.input_size
    filter = view.filter.upper()
    if isinstance(view, CenterCrop):
        before = TURNED + CENTER.format(filled=Size(*(int(side / view.fraction) for side in image)))
        if incoming == "dynamic":
            return before + DRAFT, ""
        if not plan.resizes:
            return before + DRAFT, CROPPED.format(size=image, filter=filter)
        shown = view.plan(incoming, image).resize_to  # to which the graph resizes all that comes in
        before += SCALED.format(size=incoming, shown=shown)
        return before + DRAFT, PLACED.format(size=incoming, filter=filter)
    need = image if incoming == "dynamic" else incoming
    before = PLAIN.format(need=need) if need.height == need.width else TURNED + PLAIN_TURNED.format(need=need) + DRAFT
    return before, "" if incoming == "dynamic" else RESIZED.format(size=need, filter=filter)


def run_script(folder: Path, target: Target, files: Sequence[Path]) -> list[dict[str, Any]]:
    """What the runner in a folder says of files, in a process that has neither Vitral nor, mostly, torch."""
    # Packages come from wherever this process has them, be it the user's site or PYTHONPATH; -P leaves out the folder
    # that it happens to be in, which whoever runs the script does not have either.
    refused = {"vitral"} if target.package == "torch" else {"vitral", "torch"}
    words = [sys.executable, "-P", "-c", WITHOUT.format(refused=refused), str(folder / FILE), *map(str, files)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, check=False, encoding="utf-8")
    if done.returncode:
        told = (done.stderr.strip() or "nothing").splitlines()[-1]
        hint = "report this: the export is at fault; nothing was kept"
        raise VitralError(
            f"the runner was tried, and failed: {told}", code="export.runner_failed", where=FILE, hint=hint
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


CHECKED_FILES = 16
MIN_COSINE = 0.99  # the cosine of the angle between features that are the same but for resizing
# The runner's pixels differ by design, by a level or a few, and chances with them: where the export itself prefers its
# class by no more than this, the other one is no mistake of the runner.
MARGIN = 0.02


class RunnerAnswer(NamedTuple):
    """The runner's answer to a file, beside the export's."""

    same: bool
    wrong: bool  # beyond what other pixels explain
    difference: float


def check_runner(folder: Path, target: Target, plan: ExportPlan, engine: Engine, album: ExportImages) -> RunnerCheck:
    """What the runner says of some of the images; VitralError where that is not what the export says of them."""
    answers, names = [], []
    with TemporaryDirectory() as home:
        for number, item in enumerate(sample_evenly(album.verification, CHECKED_FILES)):
            data = runner_file(album.samples.read(item), album.samples.store.address(item.name), plan.preprocessing)
            names.append(Path(home, f"{number:02}"))
            names[-1].write_bytes(data)
            pixels = export_input(data, str(names[-1]), plan)
            batch = 1 if plan.batch_size == "dynamic" else plan.batch_size
            answers.append(run_in_batches(engine, pixels[None], batch)[0])  # (K)
        said = run_script(folder, target, names)
    pairs = list(zip(answers, said, strict=True))
    found = [_chance(*pair, plan.activation) if plan.graph.answer == "logits" else _features(*pair) for pair in pairs]
    if wrong := sum(each.wrong for each in found):
        message = f"the runner answers otherwise than the export for {wrong} of {len(found)} files"
        raise VitralError(
            message,
            code="export.runner_disagrees",
            where=folder.name,
            hint="report this: the export is at fault; nothing was kept",
        )
    agreement = sum(each.same for each in found) / len(found)
    return RunnerCheck(files=len(found), agreement=agreement, difference=max(each.difference for each in found))


def runner_file(data: bytes, name: str, needs: Preprocessing) -> bytes:
    """The file itself where the runner reads its kind, else the same picture as PNG."""
    if recognize(data, name) in ("JPEG", "PNG"):
        with Image.open(BytesIO(data)) as image:
            if image.mode in MODES:
                return data
    file = BytesIO()
    picture(decode(data, name, needs.decoding, FULL)).save(file, format="PNG")
    return file.getvalue()


def export_input(data: bytes, name: str, plan: ExportPlan) -> Pixels:
    """The picture in a file as the export takes it, (H, W, C), so that its model sees of it what Vitral shows."""
    needs = plan.preprocessing
    if not plan.resizes:
        return needs.pixels(data, name)
    file = opened(data, name, needs.decoding)
    own = needs.crop.plan(file.size, needs.image_size)
    if plan.input_size == "dynamic":
        return file.pixels(own.min_size(file.size))
    shown = needs.crop.plan(plan.input_size, needs.image_size)  # what the graph does to all that comes in
    sides = zip(own.resize_to, plan.input_size, shown.resize_to, strict=True)
    size = Size(*(round(side * came / became) for side, came, became in sides))
    pixels = resize(file.pixels(size), size, needs.crop.filter)
    rows, columns = (
        (np.arange(kept) + round((had - kept) / 2)).clip(0, had - 1)  # the middle; edges are repeated where it ends
        for had, kept in zip(size, plan.input_size, strict=True)
    )
    return pixels[rows][:, columns]


def _chance(answer: FloatArray, said: dict[str, Any], activation: Activation) -> RunnerAnswer:
    """Whether the class is the same or nearly as likely, and how far the chances of it are apart."""
    chances = probabilities(answer, activation)  # (K)
    chance = float(chances[said["label"]])
    wrong = bool(chances.max() - chance > MARGIN)
    return RunnerAnswer(bool(answer.argmax() == said["label"]), wrong, abs(chance - said["chance"]))


def _features(answer: FloatArray, said: dict[str, Any]) -> RunnerAnswer:
    """Whether the features point the same way, and how far they are apart."""
    other = np.array(said["features"], dtype=np.float32)
    cosine = float(answer @ other / (np.linalg.norm(answer) * np.linalg.norm(other)))
    return RunnerAnswer(cosine >= MIN_COSINE, cosine < MIN_COSINE, float(np.abs(answer - other).max()))
