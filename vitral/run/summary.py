"""A recipe in a few words, for the card, the page and the log."""

from vitral.model.vit import Vit
from vitral.recipe import Epochs, Recipe
from vitral.tasks.classify import Classify

Fact = tuple[str, str]


def summary(recipe: Recipe) -> list[Fact]:
    """What a colleague asks first: the model, the length, how it learns, what is done to images."""
    return [
        ("recipe", recipe.name),
        ("model", _model(recipe)),
        ("start", f"weights of {recipe.weights}" if recipe.weights else f"fresh weights, seed {recipe.seed}"),
        ("task", _task(recipe)),
        ("length", _length(recipe)),
        ("optimiser", f"{recipe.optimiser.kind}, rate {recipe.optimiser.rate:g}, decay {recipe.optimiser.decay:g}"),
        ("schedule", f"{recipe.schedule.kind}, warm-up {_warmup(recipe)}"),
        ("images", ", ".join([recipe.images.view.kind, *(each.kind for each in recipe.images.augment)])),
        ("average", recipe.average.kind),
    ]


def _model(recipe: Recipe) -> str:
    model = recipe.model
    if isinstance(model, Vit):
        return (
            f"ViT, {model.depth} layers of width {model.width}, patches of {model.stem.patch}, images of {model.image}"
        )
    return f"ResNet, stages of {', '.join(map(str, model.layers))}, images of {model.image}"


def _task(recipe: Recipe) -> str:
    task = recipe.task
    if isinstance(task, Classify):
        return f"classify, {task.loss.kind} loss, mixing {task.mixing.kind}"
    return f"masked patches, target {task.target.kind}"


def _length(recipe: Recipe) -> str:
    length = recipe.length
    how_long = f"{length.epochs:g} epochs" if isinstance(length, Epochs) else f"{length.steps:,} steps"
    return f"{how_long} in batches of {recipe.batch:,}"


def _warmup(recipe: Recipe) -> str:
    warmup = recipe.schedule.warmup
    return f"{warmup:.0%} of the run" if warmup < 1 else f"{warmup:,.0f} steps"
