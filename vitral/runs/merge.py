"""Merge models into one: uniform and greedy soups, and the interpolation of WiSE-FT."""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, Self, Unpack

from vitral.core.config import Config
from vitral.core.custom import trusted
from vitral.core.errors import ConfigError
from vitral.core.storage import make_folders, wrap_write_errors
from vitral.data.datasets.source import open_data
from vitral.data.samples import Samples, Split
from vitral.evaluation.accuracy import Accuracy, AccuracyResult, Interval
from vitral.evaluation.subject import Progress, no_progress
from vitral.html.text import align_columns, percent
from vitral.runs.build import first_split
from vitral.runs.evaluate import EvaluateKeywords, choose_split, data_notes, evaluate, run_recipe, split_config
from vitral.weights.bundle import Bundle, write_bundle
from vitral.weights.card import CardFacts, Result, render_card
from vitral.weights.load import LoadedModel, load
from vitral.weights.soup import (
    Weights,
    check_mergeable,
    greedy_soup,
    interpolate_weights,
    mean_weights,
)

UNMEASURED = "the accuracy was not measured: models without a common origin merge into a useless one; give the data"


class Ingredient(Config):
    """A model that was merged, or left out."""

    model: str  # its path
    share: float  # of its weights in the result; 0 if it was left out
    accuracy: float | None  # null if not measured


class Measurement(Config):
    """The accuracy of the result."""

    data: str
    split: Split
    images: int
    accuracy: float
    ci95: Interval
    chosen: bool  # whether the ingredients were chosen for this very figure


class Merge(Config):
    """How models were merged, and how accurate they are."""

    out: str
    method: Literal["uniform", "greedy", "interpolation"]
    ingredients: tuple[Ingredient, ...]  # in the order given
    measured: Measurement | None  # null without data
    notes: tuple[str, ...]  # caveats

    def __str__(self) -> str:
        """The table that the command prints."""
        rows = [("model", "share", "accuracy")]
        rows += [(each.model, f"{each.share:.4g}", percent(each.accuracy)) for each in self.ingredients]
        measured = self.measured
        rows.append((self.out, "", percent(measured.accuracy if measured else None)))
        title = f"{self.method} merge"
        if measured:
            title += f", accuracy on {measured.images:,} {measured.split} images of {measured.data}"
        return "\n".join([title, *align_columns(rows, right={1, 2})])

    def source(self) -> str:
        """Where the weights come from, in a line for the bundle."""
        each = [
            f"{each.share:.4g} of {each.model}" + (f" (accuracy {each.accuracy:.2%})" if self.measured else "")
            for each in self.ingredients
        ]
        line = f"{self.method} merge: {', '.join(each)}"
        if (found := self.measured) is None:
            return line
        return f"{line}; result {found.accuracy:.2%}, on {found.images:,} {found.split} images of {found.data}"


class Evaluator(NamedTuple):
    """Measures models on one split of a dataset."""

    samples: Samples
    split: Split
    progress: Progress
    settings: EvaluateKeywords

    @classmethod
    def open(
        cls, data: str | Path | Samples, model: str, split: str, root: str, more: tuple[Progress, EvaluateKeywords]
    ) -> Self:
        """Of the validation images: a merge is a choice, and the test images are for what was chosen."""
        samples = data if isinstance(data, Samples) else open_data(str(data), split_config(model), root)
        return cls(samples, choose_split(samples, split or first_split(samples, "val", "test") or ""), *more)

    def measure(self, loaded: LoadedModel) -> Accuracy:
        found = evaluate(loaded, self.samples, split=self.split, progress=self.progress, **self.settings)
        (result,) = found.results
        assert isinstance(result, AccuracyResult)
        return result.accuracy


class MergedModel(NamedTuple):
    """Weights of a merge, the share of each ingredient, and the accuracies where measured."""

    weights: Weights
    shares: tuple[float, ...]
    accuracies: tuple[float, ...] = ()
    result: Accuracy | None = None


def merge(
    models: Sequence[str | Path],
    out: str | Path,
    *,
    data: str | Path | Samples | None = None,
    greedy: bool = False,
    alpha: float | None = None,
    split: str = "",
    root: str = "",
    progress: Progress = no_progress,
    **settings: Unpack[EvaluateKeywords],
) -> Merge:
    """Merge models of one architecture into a new bundle: `vitral.merge(["runs/a", "runs/b"], "soup", data="photos/")`.

    The result is the mean of the weights. With `greedy` models are added from the most accurate on, each only if the
    accuracy on the data does not drop. With `alpha` the result is (1 - alpha) of the first and alpha of the second of
    two models. With data, every model and the result are measured, by default on the validation images. `settings` are
    those of `vitral.evaluate`.
    """
    names, home = [str(each) for each in models], Path(out).expanduser()
    check_request(names, home, greedy, alpha)
    if data is None:
        check_unmeasured({"greedy": greedy, "split": split, "root": root})
    with trusted(settings.pop("trust", False)):
        loaded = [load(name) for name in names]
        bundles = [each.bundle for each in loaded]
        notes = check_mergeable(names, bundles)
        evaluator = None if data is None else Evaluator.open(data, names[0], split, root, (progress, settings))
        notes += [UNMEASURED] if evaluator is None else _data_notes(names, evaluator.samples, bundles[0])
        merged = _merge(loaded, evaluator, greedy, alpha)
        record = Merge(
            out=str(out),
            method="greedy" if greedy else "uniform" if alpha is None else "interpolation",
            ingredients=_ingredients(names, merged),
            measured=_measurement(merged.result, evaluator, greedy),
            notes=tuple(dict.fromkeys(notes)),
        )
        _write(home, bundles, merged.weights, record)
    return record


def check_request(names: Sequence[str], out: Path, greedy: bool, alpha: float | None) -> None:
    """Raise an error for a request that cannot succeed, before any work."""
    if len(names) < 2:
        message, hint = f"expected at least two models, got {len(names)}", "vitral merge A B OUT"
        raise ConfigError(message, code="config.missing_value", where="models", hint=hint)
    if os.path.lexists(out):
        message, hint = (
            "already exists and is not overwritten",
            "the last name is that of the new folder: choose another",
        )
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)
    if alpha is None:
        return
    if greedy or len(names) != 2:
        found = "a greedy soup" if greedy else f"{len(names)} models"
        message, hint = f"interpolates between exactly two models, got {found}", "leave it out"
        raise ConfigError(message, code="config.conflict", where="alpha", hint=hint)
    if not 0 <= alpha <= 1:
        message = f"expected a number from 0 to 1, got {alpha:g}"
        raise ConfigError(message, code="config.out_of_range", where="alpha")


def check_unmeasured(options: Mapping[str, object]) -> None:
    """Raise if an option that needs data is given without data."""
    for name, value in options.items():
        if value:
            message, hint = "needs data to measure the accuracy on", "give it: --data DATA"
            raise ConfigError(message, code="config.missing_value", where=f"--{name}", hint=hint)


def _merge(
    loaded: Sequence[LoadedModel], evaluator: Evaluator | None, greedy: bool, alpha: float | None
) -> MergedModel:
    states = [each.model.state_dict() for each in loaded]
    count = len(states)
    if evaluator is None:
        return MergedModel(*_average(states, alpha))
    each = [evaluator.measure(model) for model in loaded]
    accuracies = tuple(found.top1 for found in each)

    def measure(weights: Weights) -> Accuracy:
        model = loaded[0].bundle.model.build_empty()
        model.load_weights(weights)
        return evaluator.measure(LoadedModel(model.eval(), loaded[0].bundle))

    if not greedy:
        weights, shares = _average(states, alpha)
        return MergedModel(weights, shares, accuracies, measure(weights))
    measured: dict[tuple[int, ...], Accuracy] = {(index,): each[index] for index in range(count)}

    def measure_mean(chosen: tuple[int, ...]) -> float:
        measured[chosen] = measure(_mean_of(states, chosen))
        return measured[chosen].top1

    chosen = greedy_soup(accuracies, measure_mean)
    shares = tuple((index in chosen) / len(chosen) for index in range(count))
    return MergedModel(_mean_of(states, chosen), shares, accuracies, measured[chosen])


def _average(states: Sequence[Weights], alpha: float | None) -> tuple[Weights, tuple[float, ...]]:
    """The merged weights, and the share of each model."""
    if alpha is None:
        return mean_weights(states), (1 / len(states),) * len(states)
    first, second = states
    return interpolate_weights(first, second, alpha), (1 - alpha, alpha)


def _mean_of(states: Sequence[Weights], chosen: Sequence[int]) -> Weights:
    return mean_weights([states[index] for index in chosen])


def _data_notes(names: Sequence[str], samples: Samples, bundle: Bundle) -> Iterator[str]:
    for name in names:
        yield from data_notes(name, samples, bundle)
        recipe = run_recipe(name)
        if samples.divided and recipe and recipe.data.split != split_config(names[0]):
            yield f"{name} was trained on another split than {names[0]}: some images may be its training images"


def _ingredients(names: Sequence[str], merged: MergedModel) -> tuple[Ingredient, ...]:
    accuracies = merged.accuracies or (None,) * len(names)
    rows = zip(names, merged.shares, accuracies, strict=True)
    return tuple(Ingredient(model=name, share=share, accuracy=accuracy) for name, share, accuracy in rows)


def _measurement(found: Accuracy | None, evaluator: Evaluator | None, greedy: bool) -> Measurement | None:
    if found is None or evaluator is None:
        return None
    return Measurement(
        data=evaluator.samples.where,
        split=evaluator.split,
        images=found.images,
        accuracy=found.top1,
        ci95=found.ci95,
        chosen=greedy,
    )


def _write(home: Path, bundles: Sequence[Bundle], weights: Weights, record: Merge) -> None:
    assumptions = tuple(dict.fromkeys(line for each in bundles for line in each.assumptions))
    bundle = bundles[0].model_copy(update={"source": record.source(), "assumptions": assumptions})
    results: tuple[Result, ...] = ()
    if found := record.measured:
        interval = found.ci95
        facts = (found.accuracy, interval.low, interval.high, found.split, found.images, found.chosen)
        results = (Result("accuracy", *facts),)
    with wrap_write_errors(home):
        make_folders(home.parent)
    write_bundle(home, bundle, weights, render_card(bundle, CardFacts(home.absolute().name, None, results)))
