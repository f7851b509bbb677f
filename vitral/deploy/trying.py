"""The runner of an export, tried on real files before the export gets its name.  K numbers of an answer."""

from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from PIL import Image

from vitral.data.decoder.decode import FULL, decode, opened
from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.kind import recognise
from vitral.data.transforms.picture import picture
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.view import PlainResize
from vitral.deploy.engine import Engine, Numbers
from vitral.deploy.exported import RunnerCheck
from vitral.deploy.pictures import Album, spread
from vitral.deploy.runner import MODES, run
from vitral.deploy.targets import Plan, Target
from vitral.deploy.verify import in_batches
from vitral.errors import VitralError

FILES = 16
ALIKE = 0.99  # the cosine of the angle between features that are the same but for resizing


def tried(folder: Path, target: Target, plan: Plan, engine: Engine, album: Album) -> RunnerCheck:
    """What the runner says of some of the images; VitralError where that is not what the export says of them."""
    answers, names = [], []
    with TemporaryDirectory() as home:
        for number, item in enumerate(spread(album.judging, FILES)):
            data = as_file(album.samples.read(item), album.samples.store.address(item.name), plan.needs)
            names.append(Path(home, f"{number:02}"))
            names[-1].write_bytes(data)
            pixels = taken(data, str(names[-1]), plan)
            batch = 1 if plan.batch == "dynamic" else plan.batch
            answers.append(in_batches(engine, pixels[None], batch)[0])  # (K)
        said = run(folder, target, names)
    pairs = list(zip(answers, said, strict=True))
    found = [_chance(*pair) if plan.graph.answer == "logits" else _features(*pair) for pair in pairs]
    same = sum(each[0] for each in found)
    if same < len(found):
        what = f"the runner answers otherwise than the export for {len(found) - same} of {len(found)} files"
        raise VitralError(what, where=folder.name, remedy="report this: the export is at fault; nothing was kept")
    return RunnerCheck(files=len(found), agreement=same / len(found), difference=max(each[1] for each in found))


def as_file(data: bytes, name: str, needs: Preprocessing) -> bytes:
    """The file itself where the runner reads its kind, else the same picture as PNG."""
    if recognise(data, name) in ("JPEG", "PNG"):
        with Image.open(BytesIO(data)) as image:
            if image.mode in MODES:
                return data
    file = BytesIO()
    picture(decode(data, name, needs.decoding, FULL)).save(file, format="PNG")
    return file.getvalue()


def taken(data: bytes, name: str, plan: Plan) -> Pixels:
    """The picture in a file as the export takes it, (H, W, C)."""
    needs = plan.needs
    if plan.incoming == "dynamic":
        file = opened(data, name, needs.decoding)
        return file.pixels(needs.view.glimpse(file.size, needs.image).need(file.size))
    if plan.resizes:
        view = PlainResize(filter=needs.view.filter)
        needs = needs.model_copy(update={"image": plan.incoming, "view": view})
    return needs.pixels(data, name)


def _chance(answer: Numbers, said: dict[str, Any]) -> tuple[bool, float]:
    """Whether the class is the same, and how far the chances of it are apart."""
    chances = np.exp(answer - answer.max())
    chance = float(chances[said["label"]] / chances.sum())
    return bool(answer.argmax() == said["label"]), abs(chance - said["chance"])


def _features(answer: Numbers, said: dict[str, Any]) -> tuple[bool, float]:
    """Whether the features point the same way, and how far they are apart."""
    other = np.array(said["features"], dtype=np.float32)
    cosine = float(answer @ other / (np.linalg.norm(answer) * np.linalg.norm(other)))
    return cosine >= ALIKE, float(np.abs(answer - other).max())
