"""The demo: train on the bundled images, look at some answers, and see what to type next."""

import sys
from shutil import which

from vitral.core.activation import probabilities
from vitral.runs.result import Run
from vitral.runs.train import train

NEXT = (
    ("see what a model is made of", "vitral describe B/16"),
    ("look over photos of your own, a folder for each class", "vitral check PHOTOS/"),
    ("train on them", "vitral train PHOTOS/"),
)


def run_demo(out: str, *settings: str) -> Run:
    """Train for a minute or so."""
    return train("sample", *settings, recipe="sample", out=out)


def format_demo(run: Run) -> str:
    """What came of it."""
    return "\n".join([*answer_table(run), "", *accuracy_lines(run), "", *next_commands()])


def answer_table(run: Run) -> list[str]:
    """A table with the answer to one image of each class."""
    assert run.judgment is not None
    given, classes = run.judgment.predictions, run.samples.classes
    shares = probabilities(given.logits, given.activation)
    rows = []
    for label, name in enumerate(classes):
        place = int((given.labels == label).nonzero()[0])
        answer = int(given.predicted[place])
        mark = "" if answer == label else "wrong"
        rows.append(f"{name:<14}{classes[answer]:<14}{shares[place, answer]:>9.0%}  {mark}".rstrip())
    return [f"{'image of':<14}{'answer':<14}{'how sure':>9}", *rows]


def accuracy_lines(run: Run) -> list[str]:
    """How well it does, and where its page is."""
    assert run.judgment is not None
    found = run.judgment.accuracy
    return [
        f"right on {found.top1:.1%} of {found.images:,} images that it never saw",
        f"the whole story: {run.folder.report}",
    ]


def next_commands() -> list[str]:
    """Three commands to try, by a name that the shell finds."""
    program = "vitral" if which("vitral") else sys.argv[0]
    lines = [(command.replace("vitral", program, 1), purpose) for purpose, command in NEXT]
    width = max(len(command) for command, _ in lines)
    return ["try next:", *(f"  {command:<{width}}   {purpose}" for command, purpose in lines)]
