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
from jinja2 import StrictUndefined, Template
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
from vitral.exporters.targets import ExportPlan, Target
from vitral.exporters.verify import ExportImages, sample_evenly
from vitral.inference.engines.engine import Engine, FloatArray, run_in_batches
from vitral.inference.exported import MODEL_FILES, RunnerCheck

FILE = "run.py"
TEMPLATE = Path(__file__).with_name("run.py.jinja")
NO_VERIFY = "--no-verify"
TIMEOUT = 600  # seconds, far more than it needs
MODES = ("1", "L", "LA", "P", "RGB", "RGBA")  # of Pillow images that it decodes as Vitral does
CHECKED_FILES = 16
FACTORS = {"smallest": 1, "triple": 3, "full": 65_535}  # of the size that a JPEG is decoded at least at
MIN_COSINE = 0.99  # of features that differ by resizing only
# Pillow's pixels differ from Vitral's by a few levels, and so do probabilities: another class is an error only where
# the export prefers its own by more than this.
MARGIN = 0.02
BUG = "report this as a bug in the export; nothing was written"
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
    crop, image_size, decoding = plan.preprocessing.crop, plan.preprocessing.image_size, plan.preprocessing.decoding
    dynamic = plan.input_size == "dynamic"
    size = image_size if plan.input_size == "dynamic" else plan.input_size
    filled = in_graph = None  # the size that a center crop is cut from, and the size that the graph resizes to
    if isinstance(crop, CenterCrop):
        filled = crop.filled(image_size)
        in_graph = crop.plan(size, image_size).resize_to if plan.resizes and not dynamic else None
    text = TEMPLATE.read_text(encoding="utf-8")
    template = Template(text, undefined=StrictUndefined, trim_blocks=True, keep_trailing_newline=True)
    return template.render(
        kind=target.kind,
        package=target.package,
        file=MODEL_FILES[target.kind],
        version=__version__,
        modes=MODES,
        dynamic=dynamic,
        size=size,
        sides="height, width" if dynamic else ", ".join(map(str, size)),
        filled=filled,
        in_graph=in_graph,
        squash=isinstance(crop, CenterCrop) and crop.aspect == "squash",
        half="// 2" if isinstance(crop, CenterCrop) and crop.rounding == "down" else "/ 2",
        filter=crop.filter.upper(),
        factor=FACTORS[decoding.jpeg_scale],
        channels=decoding.channels,
        background=(*decoding.background, 255),
        batch=plan.batch_size,
        features=plan.graph.answer == "features",
        activation=plan.activation,
    )


def run_script(
    folder: Path, target: Target, files: Sequence[Path], options: Sequence[str] = ()
) -> list[dict[str, Any]]:
    """The answers of `run.py` for files, in a process without Vitral and, except for torch exports, torch."""
    # Packages come from the same places as in this process; -P leaves out the working directory.
    blocked = {"vitral"} if target.package == "torch" else {"vitral", "torch"}
    script = [sys.executable, "-P", "-c", BLOCK_IMPORTS.format(blocked=blocked), str(folder / FILE)]
    command = [*script, *options, *map(str, files)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT, check=False, encoding="utf-8")
    if done.returncode:
        last_line = (done.stderr.strip() or "no output").splitlines()[-1]
        raise VitralError(f"run.py failed: {last_line}", code="export.runner_failed", where=FILE, hint=BUG)
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
        replies = run_script(folder, target, paths, (NO_VERIFY,))  # the manifest is written after it
    compared = [_compare(answer, reply, plan.activation) for answer, reply in zip(answers, replies, strict=True)]
    if wrong := sum(each.wrong for each in compared):
        message = f"run.py disagrees with the export on {wrong} of {len(answers)} files"
        raise VitralError(message, code="export.runner_disagrees", where=folder.name, hint=BUG)
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


def _compare(answer: FloatArray, reply: dict[str, Any], activation: Activation) -> RunnerAnswer:
    """Compare the class and its probability, or the direction and the values of features."""
    if "features" in reply:
        other = np.array(reply["features"], dtype=np.float32)
        cosine = float(answer @ other / (np.linalg.norm(answer) * np.linalg.norm(other)))
        return RunnerAnswer(cosine >= MIN_COSINE, cosine < MIN_COSINE, float(np.abs(answer - other).max()))
    expected = probabilities(answer, activation)  # (K)
    probability = float(expected[reply["label"]])
    wrong = bool(expected.max() - probability > MARGIN)
    return RunnerAnswer(bool(answer.argmax() == reply["label"]), wrong, abs(probability - reply["probability"]))
