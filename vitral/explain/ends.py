"""The beginning and the end of the walk-through, which all models share.  C channels, H x W pixels, K classes."""

from collections.abc import Sequence

from torch import Tensor

from vitral.explain.explanation import Array, Photo, Stage
from vitral.explain.words import crop_told

MOST = 5  # classes that are named


def shape(*sides: int) -> str:
    """`197 x 768`."""
    return " x ".join(map(str, sides))


def array(tensor: Tensor) -> Array:
    return tensor.detach().float().cpu().numpy()


def picture_stage(image: Tensor, photo: Photo) -> Stage:
    """The picture as numbers (1, C, H, W)."""
    words = (
        f"{crop_told(photo)} Each of its {image.numel():,} bytes, from 0 to 255, becomes a number around 0: "
        "the scale that the model was trained with."
    )
    numbers = (("least", image.min().item()), ("mean", image.mean().item()), ("greatest", image.max().item()))
    return Stage("The picture becomes numbers", "", words, shape(*image.shape[1:]), numbers, (photo.seen,))


def answer_stages(equation: str, scores: Tensor, names: Sequence[str]) -> list[Stage]:
    """The head's scores (K,) and the probabilities they become; nothing where the model names no classes."""
    if not names:
        return []
    count, chances = len(names), scores.float().softmax(dim=0)  # (K,)
    best = scores.argsort(descending=True)[:MOST].tolist()
    tops = f"the best {len(best)} are below" if count > len(best) else "here they are"
    words = f"The head weighs the numbers of that vector, once for each of the {count:,} classes: {tops}."
    first = Stage(
        "The head gives each class a score",
        equation.strip(),
        words,
        shape(count),
        tuple((names[label], scores[label].item()) for label in best),
    )
    words = (
        "Each score is taken as a power of e and divided by the sum of all of them, so that they add up to one. "
        "One more in score makes a class 2.7 times as probable."
    )
    second = Stage(
        "Scores become probabilities",
        "p = softmax(scores)",
        words,
        shape(count),
        tuple((names[label], chances[label].item()) for label in best),
    )
    return [first, second]
