"""A recipe in a few words, for the card, the page and the log."""

from vitral.model.vit import Vit
from vitral.recipe import Epochs, Recipe, Steps
from vitral.tasks.classify import Classify
from vitral.train.tuning import LastLayers, Lora

Fact = tuple[str, str]


def summary(recipe: Recipe) -> list[Fact]:
    """What a colleague asks first: the model, the length, how it learns, what is done to images."""
    return [
        ("recipe", recipe.name),
        ("model", _model(recipe)),
        ("start", f"weights of {recipe.weights}" if recipe.weights else f"fresh weights, seed {recipe.seed}"),
        ("tuning", _tuning(recipe)),
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


def _tuning(recipe: Recipe) -> str:
    match recipe.tuning:
        case LastLayers(count=count):
            return f"layers, the last {count}"
        case Lora(rank=rank, alpha=alpha, parts=parts):
            return f"lora, rank {rank}, alpha {alpha:g}, on {', '.join(parts)}"
        case other:
            return other.kind


def _length(recipe: Recipe) -> str:
    match recipe.length:
        case Epochs(epochs=epochs):
            how_long = f"{epochs:g} epochs"
        case Steps(steps=steps):
            how_long = f"{steps:,} steps"
        case shown:
            how_long = f"{shown.images:,} images shown, in {shown.fewest:g} to {shown.most:g} epochs,"
    return f"{how_long} in batches of {recipe.batch:,}"


def _warmup(recipe: Recipe) -> str:
    warmup = recipe.schedule.warmup
    return f"{warmup:.0%} of the run" if warmup < 1 else f"{warmup:,.0f} steps"
