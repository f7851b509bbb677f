"""Write docs/paper.md from the results of experiments that are kept with the code.

Run `python -m tools.write_paper FOLDER...` to keep the results of experiments that were run: the folders that
`vitral paper` made. Without folders the page is written again; `--check` compares it with the results instead.
"""

import sys
from pathlib import Path

from vitral.experiments.document import REFERENCE, read_results, render_document
from vitral.experiments.drawing import draw_result, to_png
from vitral.experiments.registry import get_experiment
from vitral.experiments.results import ExperimentResult

DOCS = Path(__file__).parent.parent / "docs"
PAGE, PICTURES = DOCS / "paper.md", DOCS / "paper"


def keep(folder: Path) -> None:
    """Copy the results of an experiment, and draw its figure."""
    result = ExperimentResult.from_json((folder / "results.json").read_bytes())
    name = result.name if result.computed else f"{result.name}-{result.scale}"
    (REFERENCE / f"{name}.json").write_text(result.model_dump_json() + "\n")
    if not result.computed:
        PICTURES.mkdir(exist_ok=True)
        (PICTURES / f"{name}.png").write_bytes(to_png(draw_result(get_experiment(result.name), result)))


def main(words: list[str]) -> int:
    """Write the page, or compare it."""
    for folder in (word for word in words if not word.startswith("--")):
        keep(Path(folder))
    page = render_document(read_results())
    if "--check" not in words:
        PAGE.write_text(page)
        return 0
    if PAGE.read_text() == page:
        return 0
    print(f"{PAGE} differs from the results; run python -m tools.write_paper", file=sys.stderr)
    return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
