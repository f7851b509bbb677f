"""The demo: train on the bundled images, show some predictions, and suggest the next commands."""

import sys
from shutil import which

from vitral.core.activation import probabilities
from vitral.runs.result import Run
from vitral.runs.train import train

NEXT = (
    ("list the layers of a model", "vitral describe B/16"),
    ("check your own photos, one folder per class", "vitral check PHOTOS/"),
    ("train on them", "vitral train PHOTOS/"),
)


def run_demo(out: str, *settings: str) -> Run:
    """Train on the bundled images for about a minute."""
    return train("sample", *settings, recipe="sample", out=out)


def format_demo(run: Run) -> str:
    """The text that the demo prints."""
    return "\n".join([*answer_table(run), "", *accuracy_lines(run), "", *next_commands()])


def answer_table(run: Run) -> list[str]:
    """A table with the prediction for one image of each class."""
    assert run.evaluation is not None
    predictions, classes = run.evaluation.predictions, run.samples.classes
    scores = probabilities(predictions.logits, predictions.activation)
    rows = []
    for label, name in enumerate(classes):
        index = int((predictions.labels == label).nonzero()[0])
        predicted = int(predictions.predicted[index])
        mark = "" if predicted == label else "wrong"
        rows.append(f"{name:<14}{classes[predicted]:<14}{scores[index, predicted]:>9.0%}  {mark}".rstrip())
    return [f"{'class':<14}{'prediction':<14}{'score':>9}", *rows]


def accuracy_lines(run: Run) -> list[str]:
    """The accuracy, and the path of the report."""
    assert run.evaluation is not None
    found = run.evaluation.accuracy
    return [
        f"accuracy {found.top1:.1%} on {found.images:,} test images",
        f"report: {run.folder.report}",
    ]


def next_commands() -> list[str]:
    """Three commands to try next."""
    program = "vitral" if which("vitral") else sys.argv[0]
    lines = [(command.replace("vitral", program, 1), purpose) for purpose, command in NEXT]
    width = max(len(command) for command, _ in lines)
    return ["next:", *(f"  {command:<{width}}   {purpose}" for command, purpose in lines)]
