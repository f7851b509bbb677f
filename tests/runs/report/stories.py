"""Stories of runs that were not run: real pictures, and answers and measurements that are made up."""

from pathlib import Path

import numpy as np
import torch

from tests.data.loading.photos import photo
from tests.data.pictures import encoded
from vitral.data.datasets.files import FileStore
from vitral.data.samples import Item, Samples
from vitral.evaluation.accuracy import compute_accuracy, compute_calibration
from vitral.evaluation.subject import Predictions
from vitral.runs.report.charts import MetricLine
from vitral.runs.report.report import Cost, Report, ReportEvaluation


def album(folder: Path, classes: tuple[str, ...], each: int = 2) -> Samples:
    """A training and a validation picture for each class and number, some files serving several names."""
    folder.mkdir(exist_ok=True)
    for number in range(7):
        (folder / f"{number}.jpg").write_bytes(encoded(photo(number), "JPEG"))
    items = [
        Item(f"{(label + number) % 7}.jpg", label, split)
        for split in ("train", "val")
        for label in range(len(classes))
        for number in range(each)
    ]
    return Samples("photos", classes, tuple(items), FileStore(str(folder)))


def answers_to(samples: Samples, sharpness: float = 2.0, seed: int = 0) -> Predictions:
    """Answers to the validation images that are often right, and surer the sharper they are."""
    rng = np.random.default_rng(seed)
    labels = np.array([item.label for item in samples.of("val")])
    logits = rng.normal(size=(len(labels), len(samples.classes))) + 1.5 * np.eye(len(samples.classes))[labels]
    return Predictions(
        torch.tensor(sharpness * logits, dtype=torch.float32), torch.from_numpy(labels), torch.arange(len(labels))
    )


def evaluation_of(samples: Samples, answers: Predictions) -> ReportEvaluation:
    return ReportEvaluation("val", answers, compute_accuracy(answers, samples.classes), compute_calibration(answers))


def measured(epochs: int = 4, each: int = 10) -> list[MetricLine]:
    """Lines as in metrics.jsonl: a loss that falls with some noise, and an evaluation at the end of each epoch."""
    rng = np.random.default_rng(0)
    lines: list[MetricLine] = []
    for step in range(1, epochs * each + 1):
        loss = float(2 * 0.98**step + rng.normal(scale=0.05))
        epoch = round(step / each, 3)
        shared = {"step": step, "epoch": epoch}
        lines.append({**shared, "split": "train", "loss": loss, "accuracy": 1 - loss / 3, "rate": 1e-3 / step})
        if step % each == 0:
            lines.append({**shared, "split": "val", "loss": loss + 0.1, "accuracy": 0.9 - loss / 3})
    return lines


def story_of(samples: Samples) -> Report:
    """A run that has just begun."""
    return Report(
        title="photos-2",
        status="running",
        answers="images are named",
        steps=40,
        command="vitral train photos",
        summary=(("model", "Ti/16"), ("optimizer", "AdamW, rate 0.001")),
        recipe='{\n  "seed": 0\n}',
        environment=(("vitral", "0.1.0"), ("processor", "a quick one")),
        samples=samples,
        metrics=(),
        evaluation=None,
        attention=None,
        cost=Cost(seconds=754, images=2560, multiply_adds=3 * 10**15, peak_memory=1_500_000_000, parameters=5_700_000),
        notes=(),
        next=(("Look at it again", "vitral evaluate runs/photos-2 photos"),),
    )


def whole_story(folder: Path, classes: tuple[str, ...] = ("cat", "dog", "fox"), each: int = 20) -> Report:
    """A run that is done and judged."""
    samples = album(folder, classes, each)
    evaluation = evaluation_of(samples, answers_to(samples))
    return story_of(samples)._replace(status="done", metrics=measured(), evaluation=evaluation)
