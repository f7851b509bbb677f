"""Robustness: ViT, hybrid and ResNet on images that are occluded, shuffled, without texture, or with a patch."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from vitral.core.manifest import own_files
from vitral.evaluation.robustness.conditions import Part
from vitral.evaluation.robustness.evaluator import RobustnessEvaluator, RobustnessResult
from vitral.experiments.checks import better
from vitral.experiments.drawing import plot_points, subtitle
from vitral.experiments.experiment import Arm, Cell, Experiment, Scale
from vitral.experiments.figures.figure3 import families
from vitral.experiments.measures import Measured, accuracy, cell_samples
from vitral.experiments.results import ExperimentResult, spread_of
from vitral.explanation.figures import INK, add_axes, new_figure, style_plot
from vitral.runs.evaluate import evaluate
from vitral.weights.load import load

CURVES: dict[Part, tuple[str, str, str]] = {  # a picture for each: the curve, its title and its horizontal axis
    "occlusion": ("random", "Occlusion", "cells dropped in percent"),
    "texture": ("texture of another image", "Texture", "share of another image's texture in percent"),
    "patch": ("optimized patch", "Adversarial patch", "area of the patch in percent"),
    "shuffle": ("shuffled cells", "Shuffled cells", "cells of the grid"),
}
SMALL, SEPARATOR = RobustnessEvaluator(parts=tuple(CURVES), images=2000), " | "
TINY = SMALL.model_copy(update={"images": 300, "patch_steps": 40})


def arms(scale: Scale) -> Sequence[Arm]:
    """The three families of models."""
    return [Arm(name, settings) for name, settings in families(scale).items()]


def robustness(cell: Cell) -> Measured:
    """The accuracy, all points of the four curves, and the mean of each curve as a share of the accuracy."""
    found, evaluator = accuracy(cell), TINY if cell.recipe.name == "paper_tiny" else SMALL
    with own_files():
        loaded = load(cell.run.best)
    (result,) = evaluate(loaded, cell_samples(cell.recipe), with_=[evaluator], split="test", cache=False).results
    assert isinstance(result, RobustnessResult)
    values: dict[str, float] = {}
    for part, (name, _, _) in CURVES.items():
        curve = next(each for each in result.of(part) if each.name == name)
        values |= {f"{part}{SEPARATOR}{point.x:.9g}": point.top1 for point in curve.points}
        values[part] = curve.mean() / max(result.top1, 1e-9)
    return Measured({**found.values, **values}, found.correct)


def draw(result: ExperimentResult) -> Figure:
    """The four pictures: the mean over seeds of each model, with one standard deviation."""
    figure = new_figure(9.4, 7.6, result.title, subtitle(result))
    for number, (part, (_, title, x_label)) in enumerate(CURVES.items()):
        axes, start = add_axes(figure, 0.9 + 4.6 * (number % 2), 4.4 - 3.6 * (number // 2), 3.7, 2.5), part + SEPARATOR
        for style, arm in enumerate(result.arms):
            seeds = [each.values for each in result.cells if each.arm == arm.arm]
            points = []
            for name in (each for each in (seeds[0] if seeds else ()) if each.startswith(start)):
                own, x = [values[name] for values in seeds], float(name.removeprefix(start))
                points.append((x if part == "shuffle" else 100 * x, sum(own) / len(own), spread_of(own) or 0.0))
            plot_points(axes, points, style, arm.arm, result.share)
        style_plot(axes, x_label, f"{title}: accuracy in percent")
        axes.legend(frameon=False, fontsize=9, labelcolor=INK)
    return figure


NOTE = "the claim is of arXiv 2105.10497; its checks count the spread over seeds, not the choice of the test images"
EXPERIMENT = Experiment(
    title="Robustness of ViT, hybrid and ResNet",
    claim="ViT keeps more of its accuracy than a ResNet under occlusion, shuffling, other textures and patches",
    arms=arms,
    checks=[better("ViT", "ResNet", f"ViT keeps a larger share of its accuracy: {part}", part) for part in CURVES],
    measure=robustness,
    differs={
        "tiny": f"small models and images, 300 test images for the curves, patches of 40 steps; {NOTE}",
        "small": f"small models and images, 2,000 test images for the curves; {NOTE}",
        "full": f"pre-training on JFT-300M; {NOTE}",
    },
    figure=draw,
)
