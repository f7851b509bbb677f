"""`run.py` of an export: a script that classifies image files without Vitral and, except for torch exports, torch.

It is checked on real files before the export is finished.  H x W pixels, C channels, K outputs.
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
from vitral.data.decoding.decode import FULL_SIZE, decode, open_image
from vitral.data.decoding.header import recognize
from vitral.data.decoding.pixels import Pixels
from vitral.data.transforms.crop import CenterCrop
from vitral.data.transforms.image_ops import to_pillow
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import resize
from vitral.exporters.plan import ExportPlan
from vitral.exporters.targets import Target
from vitral.exporters.verify import ExportImages, sample_evenly
from vitral.inference.engines.engine import Engine, FloatArray, run_in_batches
from vitral.inference.exported import RunnerCheck

FILE = "run.py"
TIMEOUT = 600  # seconds, far more than it needs
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of Pillow images that it decodes as Vitral does
CHECKED_FILES = 16
MIN_COSINE = 0.99  # of features that differ by resizing only
# Pillow's pixels differ from Vitral's by a few levels, and so do probabilities: another class is an error only where
# the export prefers its own by more than this.
MARGIN = 0.02
ENGINES = {
    "onnx": """\
os.environ["ORT_DISABLE_TELEMETRY"] = "1"  # else importing onnxruntime starts telemetry
import onnxruntime
""",
    "openvino": """\
sys.modules["openvino_telemetry"] = None  # else importing openvino sends telemetry
import openvino
""",
    "torch": """\
import torch
""",
}
SESSIONS = {
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
"""Classify images: python run.py IMAGE...   Needs numpy, pillow and {package}; written by vitral {version}."""
import json, os, sys
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps
{engine}
HERE = Path(__file__).parent
METADATA = json.loads((HERE / "export.json").read_text(encoding="utf-8"))
{session}

def pixels(path):
    """The input of the model for an image file: uint8 ({sides}, {channels})."""
    with Image.open(path) as file:
        if file.mode not in {modes}:
            sys.exit(f"{{path}}: images of mode {{file.mode}} are supported by `vitral predict` only")
{before}        image = ImageOps.exif_transpose(file)
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, {background}), image.convert("RGBA"))
    image = image.convert("RGB"){gray}
{after}    return np.asarray(image).reshape(image.height, image.width, {channels})


for path in sys.argv[1:]:
    outputs = run({batch})[0]
{answer}'''
# Steps before an image is decoded, and after.
PLAIN = """\
        file.draft(None, ({need.width}, {need.height}))  # decodes a JPEG at the smallest sufficient scale
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
        sides = round(sides[0] * {size.width} / {resized.width}), round(sides[1] * {size.height} / {resized.height})
"""
DRAFT = """\
        file.draft(None, sides[::-1] if turned else sides)  # decodes a JPEG at the smallest sufficient scale
"""
RESIZED = """\
    image = image.resize(({size.width}, {size.height}), Image.Resampling.{filter})
"""
CROPPED = """\
    left, top = round((sides[0] - {size.width}) / 2), round((sides[1] - {size.height}) / 2)
    image = image.resize(sides, Image.Resampling.{filter})
    image = image.crop((left, top, left + {size.width}, top + {size.height}))
"""
PADDED_CROP = """\
    rows = np.arange({size.height}) + round((sides[1] - {size.height}) / 2)
    columns = np.arange({size.width}) + round((sides[0] - {size.width}) / 2)
    image = np.asarray(image.resize(sides, Image.Resampling.{filter}))[rows.clip(0, sides[1] - 1)]
    image = Image.fromarray(image[:, columns.clip(0, sides[0] - 1)])  # repeats the edges where the image ends
"""
SOFTMAX = """\
    label, weights = int(outputs.argmax()), np.exp(outputs - outputs.max())
    probability = round(float(weights[label] / weights.sum()), 6)
"""
SIGMOID = """\
    label = int(outputs.argmax())
    probability = round(float(np.exp(-np.logaddexp(0, -outputs[label]))), 6)
"""
CLASSES = """\
    print(json.dumps({"image": path, "label": label, "class": METADATA["classes"][label], "probability": probability}))
"""
FEATURES = """\
    print(json.dumps({"image": path, "features": outputs.tolist()}))
"""
# Runs the script in a process that cannot import some packages.
BLOCK_IMPORTS = """
import runpy, sys
class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked!r}:
            raise ImportError(f"{{name}} is not available here", name=name)
sys.meta_path.insert(0, Blocker())
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def runner_script(target: Target, plan: ExportPlan) -> str:
    """The text of `run.py`."""
    decoding, pixels = plan.preprocessing.decoding, "pixels(path)[None]"
    before, after = _preprocessing_code(plan)
    return SCRIPT.format(
        package=target.package,
        modes=MODES,
        version=__version__,
        engine=ENGINES[target.kind],
        session=SESSIONS[target.kind],
        sides="height, width" if plan.input_size == "dynamic" else ", ".join(map(str, plan.input_size)),
        channels=decoding.channels,
        background=(*decoding.background, 255),
        before=before,
        gray='.convert("L")' if decoding.channels == 1 else "",
        after=after,
        batch=pixels if plan.batch_size == "dynamic" else f"np.repeat({pixels}, {plan.batch_size}, axis=0)",
        answer=_answer(plan),
    )


def _answer(plan: ExportPlan) -> str:
    """The lines that print the answer for one image."""
    if plan.graph.answer != "logits":
        return FEATURES
    return (SIGMOID if plan.activation == "sigmoid" else SOFTMAX) + CLASSES


def _preprocessing_code(plan: ExportPlan) -> tuple[str, str]:
    """The code that preprocesses an image: before it is decoded, and after."""
    crop, image_size, input_size = plan.preprocessing.crop, plan.preprocessing.image_size, plan.input_size
    filter = crop.filter.upper()
    if isinstance(crop, CenterCrop):
        before = TURNED + CENTER.format(filled=Size(*(int(side / crop.fraction) for side in image_size)))
        if input_size == "dynamic":
            return before + DRAFT, ""
        if not plan.resizes:
            return before + DRAFT, CROPPED.format(size=image_size, filter=filter)
        resized = crop.plan(input_size, image_size).resize_to  # to which the graph resizes its input
        before += SCALED.format(size=input_size, resized=resized)
        return before + DRAFT, PADDED_CROP.format(size=input_size, filter=filter)
    need = image_size if input_size == "dynamic" else input_size
    before = PLAIN.format(need=need) if need.height == need.width else TURNED + PLAIN_TURNED.format(need=need) + DRAFT
    return before, "" if input_size == "dynamic" else RESIZED.format(size=need, filter=filter)


def run_script(folder: Path, target: Target, files: Sequence[Path]) -> list[dict[str, Any]]:
    """The answers of `run.py` for files, in a process without Vitral and, except for torch exports, torch."""
    # Packages come from the same places as in this process; -P leaves out the working directory.
    blocked = {"vitral"} if target.package == "torch" else {"vitral", "torch"}
    command = [sys.executable, "-P", "-c", BLOCK_IMPORTS.format(blocked=blocked), str(folder / FILE), *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, encoding="utf-8")
    if done.returncode:
        last_line = (done.stderr.strip() or "no output").splitlines()[-1]
        hint = "report this as a bug in the export; nothing was written"
        raise VitralError(f"run.py failed: {last_line}", code="export.runner_failed", where=FILE, hint=hint)
    return [json.loads(line) for line in done.stdout.splitlines()]


class RunnerAnswer(NamedTuple):
    """The answer of `run.py` to a file, compared with the export's."""

    same: bool
    wrong: bool  # by more than different pixels explain
    difference: float


def check_runner(folder: Path, target: Target, plan: ExportPlan, engine: Engine, images: ExportImages) -> RunnerCheck:
    """Compare `run.py` with the export on some of the images; VitralError where they disagree."""
    answers, paths = [], []
    with TemporaryDirectory() as home:
        for number, item in enumerate(sample_evenly(images.verification, CHECKED_FILES)):
            data = runner_file(images.samples.read(item), images.samples.store.address(item.name), plan.preprocessing)
            paths.append(Path(home, f"{number:02}"))
            paths[-1].write_bytes(data)
            pixels = export_input(data, str(paths[-1]), plan)
            batch = 1 if plan.batch_size == "dynamic" else plan.batch_size
            answers.append(run_in_batches(engine, pixels[None], batch)[0])  # (K)
        replies = run_script(folder, target, paths)
    pairs = list(zip(answers, replies, strict=True))
    compared = [
        _compare_classes(*pair, plan.activation) if plan.graph.answer == "logits" else _compare_features(*pair)
        for pair in pairs
    ]
    if wrong := sum(each.wrong for each in compared):
        message = f"run.py disagrees with the export on {wrong} of {len(answers)} files"
        raise VitralError(
            message,
            code="export.runner_disagrees",
            where=folder.name,
            hint="report this as a bug in the export; nothing was written",
        )
    agreement = sum(each.same for each in compared) / len(compared)
    return RunnerCheck(files=len(compared), agreement=agreement, difference=max(each.difference for each in compared))


def runner_file(data: bytes, name: str, preprocessing: Preprocessing) -> bytes:
    """The file itself where `run.py` can read it, else the same image as PNG."""
    if recognize(data, name) in ("JPEG", "PNG"):
        with Image.open(BytesIO(data)) as image:
            if image.mode in MODES:
                return data
    file = BytesIO()
    to_pillow(decode(data, name, preprocessing.decoding, FULL_SIZE)).save(file, format="PNG")
    return file.getvalue()


def export_input(data: bytes, name: str, plan: ExportPlan) -> Pixels:
    """An image file as input of the export (H, W, C), such that its model gets the same crop as in Vitral."""
    preprocessing = plan.preprocessing
    if not plan.resizes:
        return preprocessing.pixels(data, name)
    file = open_image(data, name, preprocessing.decoding)
    own = preprocessing.crop.plan(file.size, preprocessing.image_size)
    if plan.input_size == "dynamic":
        return file.pixels(own.min_size(file.size))
    in_graph = preprocessing.crop.plan(plan.input_size, preprocessing.image_size)  # what the graph does to its input
    sides = zip(own.resize_to, plan.input_size, in_graph.resize_to, strict=True)
    size = Size(*(round(side * before / after) for side, before, after in sides))
    pixels = resize(file.pixels(size), size, preprocessing.crop.filter)
    rows, columns = (
        (np.arange(kept) + round((side - kept) / 2)).clip(0, side - 1)  # the center; edges are repeated where it ends
        for side, kept in zip(size, plan.input_size, strict=True)
    )
    return pixels[rows][:, columns]


def _compare_classes(answer: FloatArray, reply: dict[str, Any], activation: Activation) -> RunnerAnswer:
    """Compare the class and its probability."""
    expected = probabilities(answer, activation)  # (K)
    probability = float(expected[reply["label"]])
    wrong = bool(expected.max() - probability > MARGIN)
    return RunnerAnswer(bool(answer.argmax() == reply["label"]), wrong, abs(probability - reply["probability"]))


def _compare_features(answer: FloatArray, reply: dict[str, Any]) -> RunnerAnswer:
    """Compare the direction and the values of features."""
    other = np.array(reply["features"], dtype=np.float32)
    cosine = float(answer @ other / (np.linalg.norm(answer) * np.linalg.norm(other)))
    return RunnerAnswer(cosine >= MIN_COSINE, cosine < MIN_COSINE, float(np.abs(answer - other).max()))
