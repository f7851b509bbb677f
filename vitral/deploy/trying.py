"""The runner of an export, tried on real files before the export gets its name.  K numbers of an answer."""

from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitral.config import Size
from vitral.data.decoder.decode import FULL, decode, opened
from vitral.data.decoder.depth import Pixels
from vitral.data.decoder.kind import recognise
from vitral.data.transforms.picture import picture
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.data.transforms.resize import resize
from vitral.deploy.engine import Engine, Numbers, in_batches
from vitral.deploy.exported import RunnerCheck
from vitral.deploy.pictures import Album, spread
from vitral.deploy.runner import MODES, run
from vitral.deploy.targets import Plan, Target
from vitral.errors import VitralError

FILES = 16
ALIKE = 0.99  # the cosine of the angle between features that are the same but for resizing
# The runner's pixels differ by design, by a level or a few, and chances with them: where the export itself prefers its
# class by no more than this, the other one is no mistake of the runner.
MARGIN = 0.02


class Reply(NamedTuple):
    """The runner's answer to a file, beside the export's."""

    same: bool
    wrong: bool  # beyond what other pixels explain
    difference: float


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
    if wrong := sum(each.wrong for each in found):
        what = f"the runner answers otherwise than the export for {wrong} of {len(found)} files"
        raise VitralError(
            what,
            code="export.runner_disagrees",
            where=folder.name,
            remedy="report this: the export is at fault; nothing was kept",
        )
    agreement = sum(each.same for each in found) / len(found)
    return RunnerCheck(files=len(found), agreement=agreement, difference=max(each.difference for each in found))


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
    """The picture in a file as the export takes it, (H, W, C), so that its model sees of it what Vitral shows."""
    needs = plan.needs
    if not plan.resizes:
        return needs.pixels(data, name)
    file = opened(data, name, needs.decoding)
    own = needs.view.glimpse(file.size, needs.image)
    if plan.incoming == "dynamic":
        return file.pixels(own.need(file.size))
    shown = needs.view.glimpse(plan.incoming, needs.image)  # what the graph does to all that comes in
    sides = zip(own.resized, plan.incoming, shown.resized, strict=True)
    size = Size(*(round(side * came / became) for side, came, became in sides))
    pixels = resize(file.pixels(size), size, needs.view.filter)
    rows, columns = (
        (np.arange(kept) + round((had - kept) / 2)).clip(0, had - 1)  # the middle; edges are repeated where it ends
        for had, kept in zip(size, plan.incoming, strict=True)
    )
    return pixels[rows][:, columns]


def _chance(answer: Numbers, said: dict[str, Any]) -> Reply:
    """Whether the class is the same or nearly as likely, and how far the chances of it are apart."""
    weights = np.exp(answer - answer.max())
    chances = weights / weights.sum()  # (K)
    chance = float(chances[said["label"]])
    wrong = bool(chances.max() - chance > MARGIN)
    return Reply(bool(answer.argmax() == said["label"]), wrong, abs(chance - said["chance"]))


def _features(answer: Numbers, said: dict[str, Any]) -> Reply:
    """Whether the features point the same way, and how far they are apart."""
    other = np.array(said["features"], dtype=np.float32)
    cosine = float(answer @ other / (np.linalg.norm(answer) * np.linalg.norm(other)))
    return Reply(cosine >= ALIKE, cosine < ALIKE, float(np.abs(answer - other).max()))
