"""`vitral demo`."""

from typing import TYPE_CHECKING, Annotated

from vitral.cli.terminal.app import program, verb
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.cli.training.train import show_run

if TYPE_CHECKING:
    from vitral.runs.train import Run

NEXT = {
    "vitral describe B/16": "list the layers of a model",
    "vitral check PHOTOS/": "check your own photos, one folder per class",
    "vitral train PHOTOS/": "train on them",
}


@verb("vitral demo")
def demo(out: Annotated[str, option("FOLDER", "New run folder.", "runs/sample")] = "") -> None:
    """Train on the bundled images for a minute or two, and predict."""
    from vitral.core.machine import bound_spinning, keep_freed_memory

    bound_spinning()
    from vitral.runs.train import train

    keep_freed_memory()
    run = train("sample", recipe="sample", out=out)
    if run.signal:
        show_run(run)
    echo(format_demo(run))


def format_demo(run: "Run") -> str:
    """The prediction for one image of each class, the accuracy, the path of the report, and commands to try next."""
    from vitral.core.activation import probabilities

    assert run.evaluation is not None
    predictions, classes, accuracy = run.evaluation.predictions, run.samples.classes, run.evaluation.accuracy
    scores = probabilities(predictions.logits, predictions.activation)
    lines = [f"{'class':<14}{'prediction':<14}{'score':>9}"]
    for label, name in enumerate(classes):
        index = int((predictions.labels == label).nonzero()[0])
        predicted = int(predictions.predicted[index])
        mark = "" if predicted == label else "wrong"
        lines.append(f"{name:<14}{classes[predicted]:<14}{scores[index, predicted]:>9.0%}  {mark}".rstrip())
    lines += ["", f"accuracy {accuracy.top1:.1%} on {accuracy.images:,} test images", f"report: {run.folder.report}"]
    commands = {command.replace("vitral", program(), 1): purpose for command, purpose in NEXT.items()}
    width = max(map(len, commands))
    return "\n".join([*lines, "", "next:", *(f"  {each:<{width}}   {purpose}" for each, purpose in commands.items())])
