"""Export: a model as a folder of files that others run, which comes into being only if it answers as the model does."""

import json
import os
from pathlib import Path
from typing import Literal, NamedTuple

from vitral.core.config import Size
from vitral.core.errors import ConfigError, DataError, VitralError
from vitral.core.storage import new_folder
from vitral.exporters.runner import FILE as RUNNER
from vitral.exporters.runner import script, tried
from vitral.exporters.targets import DISK, Batch, Incoming, Plan, Target, TorchTarget
from vitral.exporters.verify import (
    BATCHES,
    FLOAT32,
    INT8,
    Album,
    Bound,
    Expected,
    Sitting,
    expected,
    faults,
    judge,
    seen,
)
from vitral.inference.engines.engine import INPUT, Engine, Precision
from vitral.inference.exported import (
    BY_RUNNER,
    FILE,
    IN_GRAPH,
    TO_SIZE,
    Certificate,
    Export,
    Port,
    Quantization,
    files_in,
    versions,
)
from vitral.inference.graph.graph import graph_of
from vitral.weights.bundle import Bundle
from vitral.weights.load import Loaded

README = "README.md"
SIDES = ((1.7, 2.3), (0.6, 0.9), (2.9, 1.4), (1.0, 1.0))  # of pictures of any size, by the model's own


class Wish(NamedTuple):
    """What an export is to be."""

    target: Target
    precision: Precision = "float32"
    batch: Batch = "dynamic"
    incoming: Incoming | Literal["own"] = "own"  # the size of pictures; the model's own by itself


class Source(NamedTuple):
    """A model and the file that its weights are in, as its sha256."""

    loaded: Loaded
    weights: str


class Work(NamedTuple):
    """What an export is made of, and held to."""

    wish: Wish
    plan: Plan
    sitting: Sitting
    truth: Expected

    @property
    def bound(self) -> Bound:
        return INT8 if self.wish.precision == "int8" else FLOAT32

    def judged(self, engine: Engine) -> Certificate:
        """The certificate of an engine: of one on trial by the very questions that the written file is asked."""
        batches = BATCHES if self.plan.batch == "dynamic" else (self.plan.batch,)
        return judge(engine, self.truth, self.sitting, self.bound, self.sitting.words(), batches)


def export(source: Source, album: Album, wish: Wish, out: Path) -> Export:
    """Write a new folder and give what its `export.json` says; VitralError, and no folder, if it answers otherwise."""
    refuse_impossible(source.loaded.bundle, album, wish, out)
    plan = planned(source.loaded, wish)
    sitting = Sitting(album, plan.needs, incoming_sizes(plan))
    work = Work(wish, plan, sitting, expected(source.loaded, sitting, album.labels))
    with new_folder(out) as draft:
        return written(work, source, draft)


def refuse_impossible(bundle: Bundle, album: Album, wish: Wish, out: Path) -> None:
    """Find what would end an export, before anything is made for it."""
    if os.path.lexists(out):
        raise VitralError(
            "is there already, and is not overwritten",
            code="file.exists",
            where=str(out),
            hint="choose another: --out",
        )
    if bundle.model.channels not in (1, 3):
        message = f"the runner reads pictures, and no picture has {bundle.model.channels} channels"
        raise ConfigError(
            message, code="config.unsupported", where="model.channels", hint="use vitral.Predictor in Python"
        )
    if wish.precision == "int8" and isinstance(wish.target, TorchTarget):
        raise ConfigError(
            "int8 is for ONNX and OpenVINO",
            code="config.conflict",
            where="--int8",
            hint="use --to onnx or --to openvino",
        )
    if wish.precision == "int8" and bundle.task != "classify":
        message = "int8 is held to the classes that it names, and this model names none"
        raise ConfigError(message, code="config.unsupported", where="--int8", hint="leave it out")
    if wish.precision == "int8" and not album.calibrating:
        message = "all images judge, and none is left to calibrate with"
        raise DataError(message, code="data.too_few", where=album.samples.where, hint="let fewer judge: --images")
    wish.target.check(wish.incoming if wish.incoming != "own" else bundle.preprocessing.image_size)


def planned(loaded: Loaded, wish: Wish) -> Plan:
    """The graph to be written, and what is told of it inside its file."""
    bundle = loaded.bundle
    graph = graph_of(loaded, "logits" if bundle.task == "classify" else "features")
    facts = {
        "classes": json.dumps(bundle.classes),
        "preprocessing": json.dumps(bundle.preprocessing.model_dump(mode="json")),
        "task": bundle.task,
    }
    incoming = bundle.preprocessing.image_size if wish.incoming == "own" else wish.incoming
    return Plan(graph, bundle.preprocessing, wish.batch, incoming, facts, wish.precision)


def incoming_sizes(plan: Plan) -> tuple[Size, ...]:
    """The sizes of pictures that an export is tried with, where it resizes them."""
    if plan.incoming == "dynamic":
        least, (high, wide) = plan.needs.decoding.shortest_side, plan.needs.image_size
        return tuple(Size(max(least, round(high * tall)), max(least, round(wide * broad))) for tall, broad in SIDES)
    return (plan.incoming,) if plan.resizes else ()


def where_resized(plan: Plan) -> str:
    """Who makes a picture what the model sees, in words."""
    if plan.incoming == "dynamic":
        return IN_GRAPH
    return TO_SIZE if plan.resizes else BY_RUNNER


def written(work: Work, source: Source, draft: Path) -> Export:
    """All files of the export in a folder that is still a draft, judged; the notes are written last."""
    wish, plan, bundle = work.wish, work.plan, source.loaded.bundle
    quantization = _model_written(work, draft)
    engine = wish.target.open(draft)
    certificate = work.judged(engine)
    if found := faults(certificate, work.bound):
        hint = "report this: the export is at fault; nothing was kept"
        raise VitralError(
            f"the export answers otherwise than its model: {'; '.join(found)}", code="export.disagrees", hint=hint
        )
    notes = Export(
        kind=wish.target.kind,
        precision=wish.precision,
        opset=wish.target.opset,
        files=files_in(draft),
        input=Port(name=INPUT, type="uint8", shape=tuple(plan.shape())),
        output=Port(name=plan.graph.answer, type="float32", shape=(plan.shape()[0], plan.graph.outputs)),
        task=bundle.task,
        classes=bundle.classes,
        preprocessing=plan.needs,
        resizing=where_resized(plan),
        weights=source.weights,
        source=bundle.source,
        versions=versions(),
        quantization=quantization,
        certificate=certificate,
        runner=None,
    )
    texts = {RUNNER: script(wish.target, plan), README: readme(notes), FILE: notes.to_json()}
    for name, text in texts.items():
        DISK.write(draft / name, [memoryview(text.encode())])
    checked = notes.model_copy(update={"runner": tried(draft, wish.target, plan, engine, work.sitting.album)})
    DISK.replace(draft / FILE, checked.to_json().encode())
    return checked


def _model_written(work: Work, draft: Path) -> Quantization | None:
    """Write the model, quantized if that is the wish."""
    target, plan = work.wish.target, work.plan
    if work.wish.precision == "float32" or isinstance(target, TorchTarget):
        target.write(plan, draft)
        return None
    from vitral.exporters.quantize import Quantizing, quantized

    album, core = work.sitting.album, plan.core()
    calibrating = seen(album.samples, album.calibrating, plan.needs)  # (B, H, W, C)
    found = quantized(
        Quantizing(core, target, calibrating, lambda model: work.judged(target.engine(plan.finished(model))))
    )
    target.save(plan.finished(found.model), draft)
    return found.notes


def readme(notes: Export) -> str:
    """What a person who finds the folder should know."""
    takes, gives = (", ".join(map(str, port.shape)) for port in (notes.input, notes.output))
    lines = [
        f"# A model in {notes.precision}, exported by vitral {notes.vitral}",
        "",
        "    python run.py PICTURE...",
        "",
        f"- The model takes `{notes.input.name}`, uint8 ({takes}), and gives `{notes.output.name}`, float32 ({gives}).",
        f"- Normalization is in the graph; resizing is {notes.resizing}.",
        *(f"- {line}" for line in notes.certificate.lines()),
        "- export.json holds the names of the classes, the preprocessing and all of the certificate.",
        "",
    ]
    return "\n".join(lines)
