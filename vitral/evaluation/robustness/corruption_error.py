"""The mean corruption error of ImageNet-C (arXiv 1903.12261): errors beside those of a reference model."""

from collections.abc import Mapping

from vitral.evaluation.robustness.corruptions import CORRUPTIONS

# Errors of AlexNet on ImageNet-C, each the mean of 5 severities, from the authors of AugMix.
ALEXNET = dict(
    zip(
        CORRUPTIONS,
        (
            0.886428, 0.894468, 0.922640, 0.819880, 0.826268, 0.785948, 0.798360, 0.866816, 0.826572, 0.819324,
            0.564592, 0.853204, 0.646056, 0.717840, 0.606500,
        ),
        strict=True,
    )
)  # fmt: skip


def mean_corruption_error(errors: Mapping[str, float], reference: Mapping[str, float]) -> float:
    """The mean over corruptions of the error, itself a mean over severities, divided by that of the reference."""
    return sum(errors[name] / reference[name] for name in reference) / len(reference)
