"""`docs/paper.md`: which claims held where the experiments were run, from the results in `reference/`."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from vitral.core.files import read_file
from vitral.experiments.experiment import SCALES
from vitral.experiments.registry import list_experiments
from vitral.experiments.results import VERDICT_NOTES, ExperimentResult

REFERENCE = Path(__file__).parent / "reference"
NOTE = "<!-- Written by `python -m tools.write_paper` from vitral/experiments/reference; do not edit. -->"
INTRODUCTION = """\
The claims of the paper are comparisons. `vitral paper` runs them:

```
vitral paper                                      # the list
vitral paper table8                               # minutes on 2 cores, with the bundled images
vitral paper table8 --scale small --jobs 2        # hours, with CIFAR-10 or Fashion-MNIST; --data names other data
vitral paper table8 --scale small --resume        # after Ctrl-C or a kill; the numbers are the same
vitral paper table8 --scale full --plan           # the paper's own training: what it is and what it costs
```

Every run is an ordinary run in the folder of the experiment, and every trial of a learning rate is in its sweeps. The
results are `results.json`, `table.txt` and `figure.png`. In Python: `vitral.paper("table8", scale="tiny")`.

## How arms are compared

- The learning rate of each arm is the best of several on held-out training images. Every arm tries as many.
- Budgets are equal in counted FLOPs: two for each multiply-add, three passes of the model for a training image. Where
  they cannot be equal, the table says why.
- Test images are used once, by the runs that are compared. These have three seeds, none of which chose a learning
  rate.
- A difference counts if it is statistically significant: at 95% over all checks of an experiment together, given the
  spread over seeds and the sampling of the test images. The smallest difference that could have been found is stated;
  below it a check is `undecided`.
- Equality is `held` only if a difference above the margin, two points, would have been found.
- The verdict on a claim is that of its weakest check. An arm that is no better than guessing makes it `invalid`.
- A claim that does not hold, or is undecided, with small models and small data says nothing against the paper: what
  differs from the original stands below each table.

An experiment is a file of at most 80 lines in `vitral/experiments/tables`, `figures` or `studies`: its arms are
settings over a recipe that all of them share.
"""


def read_results(folder: Path = REFERENCE) -> list[ExperimentResult]:
    """The results that are kept with the code, in the order of the experiments and scales."""
    order = {each.name: number for number, each in enumerate(list_experiments())}
    found = [ExperimentResult.from_json(read_file(path)) for path in folder.glob("*.json")]
    return sorted(found, key=lambda each: (order.get(each.name, len(order)), SCALES.index(each.scale)))


def render_document(results: Sequence[ExperimentResult]) -> str:
    """The page."""
    lines = [NOTE, "# The paper, run again", "", INTRODUCTION, *summary(results), ""]
    for result in results:
        lines += section(result)
    return "\n".join(lines).rstrip() + "\n"


def summary(results: Sequence[ExperimentResult]) -> Iterator[str]:
    """Every experiment with its verdicts."""
    yield "## Which claims held"
    yield ""
    yield "| experiment | claim | scale | verdict |"
    yield "|---|---|---|---|"
    for result in results:
        scale = f"{result.scale}, {result.data}" if result.trained else "computed" if result.computed else "measured"
        yield f"| [`{result.name}`](#{anchor(heading(result))}) | {result.claim} | {scale} | {result.verdict} |"
    done = {result.name for result in results}
    if missing := [f"`{each.name}`" for each in list_experiments() if each.name not in done]:
        yield ""
        yield f"Not run here yet: {', '.join(missing)}."


def section(result: ExperimentResult) -> Iterator[str]:
    """The results of an experiment."""
    yield f"## {heading(result)}"
    yield ""
    yield f"Claim: {result.claim}."
    yield ""
    head = result.head()
    yield f"| {' | '.join(head)} |"
    yield f"|{'---|' * len(head)}"
    for _, row in result.table():
        yield f"| {' | '.join(row)} |"
    yield ""
    for line in result.check_lines():
        yield f"- {line}"
    yield ""
    if result.verdict != "none":
        yield f"Verdict: **{result.verdict}** ({VERDICT_NOTES[result.verdict]})."
        yield ""
    yield from (f"{sentence(note)}." for note in result.notes())
    yield provenance(result)
    yield ""
    if not result.computed:
        yield f"![{result.title}](paper/{result.name}-{result.scale}.png)"
        yield ""


def heading(result: ExperimentResult) -> str:
    """The title of a section."""
    return result.name if result.computed else f"{result.name}, {result.scale}"


def anchor(text: str) -> str:
    """The anchor of a heading."""
    return text.lower().replace(",", "").replace(" ", "-")


def sentence(text: str) -> str:
    """The text with a capital letter."""
    return text[0].upper() + text[1:]


def provenance(result: ExperimentResult) -> str:
    """By which command, code and machine, and when."""
    commits = sorted({cell.code.commit[:12] for cell in result.cells if cell.code.commit})
    machines = sorted({cell.code.machine for cell in result.cells})
    code = f", commit {' and '.join(commits)}" if commits else ""
    return f"`{result.command}`, {result.finished[:10]}, {' and '.join(machines)}{code}."
