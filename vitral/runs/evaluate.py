"""Evaluate a model on a dataset with one or more evaluators."""

import os
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal, TypedDict, Unpack

from pydantic import Field

from vitral.core.config import Config, override
from vitral.core.custom import trusted, use_copies
from vitral.core.errors import ConfigError, DataError
from vitral.core.files import read_file
from vitral.core.storage import make_folders, wrap_write_errors
from vitral.data.datasets.source import open_data, open_images
from vitral.data.loading.sampler import hold_out
from vitral.data.samples import SPLITS, Samples, Split, StratifiedSplit
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.calibration import CalibrationResult
from vitral.evaluation.evaluators import Evaluation, Evaluator, EvaluatorResult, parse_evaluators, run_evaluators
from vitral.evaluation.feature_cache import FeatureCache, default_cache
from vitral.evaluation.subject import (
    EngineFunction,
    EvaluationContext,
    Progress,
    SubjectModel,
    are_matched_by_number,
    check_same_preprocessing,
    no_progress,
)
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.engines.openvino import OpenVino
from vitral.inference.graph.graph import build_graph
from vitral.inference.graph.token_merging import TokenMerging
from vitral.models.head import NoHead
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe, read_recipe
from vitral.runs.build import first_split, num_workers, select_device
from vitral.runs.folder import RunFolder
from vitral.weights.bundle import CODE, Bundle, write_bundle
from vitral.weights.card import CardFacts, render_card
from vitral.weights.hub import PREFIX
from vitral.weights.load import LoadedModel, find_bundle, load


@dataclass(frozen=True)
class EngineFactory:
    """Builds engines of one kind, on the CPU, with token merging."""

    kind: EngineConfig

    @property
    def engine(self) -> str:
        return self.kind.kind

    def check(self, bundle: Bundle) -> None:
        TokenMerging(per_layer=1).check(bundle.model)

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        assert isinstance(bundle.model, Vit)
        layout = bundle.model.layout(bundle.preprocessing.image_size)
        removed = TokenMerging(per_layer=per_layer).removed_per_layer(layout, bundle.model.depth)
        return layout.length() - sum(removed[:-1])

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        model, bundle = loaded
        here = all(weight.device.type == "cpu" for weight in model.parameters())
        own = loaded if here else LoadedModel(deepcopy(model).cpu(), bundle)
        return self.kind.build(build_graph(own, merging=TokenMerging(per_layer=per_layer))).run


def default_engines() -> EngineFactory:
    """The usually fastest kind of engine that is installed."""
    kinds: dict[str, EngineConfig] = {"openvino": OpenVino(), "onnxruntime": OnnxRuntime()}
    found = (kind for package, kind in kinds.items() if find_spec("onnx") and find_spec(package))
    return EngineFactory(next(found, Eager()))


EVAL_SPLITS: tuple[Split, ...] = ("test", "val")


class EvaluateOptions(Config):
    """Settings of an evaluation."""

    batch_size: int = Field(default=64, ge=1)  # images at a time; fewer of those larger than the trained size
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that read images; they change no bit
    seed: int = Field(default=0, ge=0)  # of folds and few-shot draws
    cache: bool = True  # keep features on disk for the next evaluation
    lenient: bool = False  # use what decodes of damaged images, and name them
    max_pixels: Annotated[int, Field(ge=1)] | Literal["model"] = "model"  # of an image
    ood_data: str = ""  # images unlike the data, for the evaluator `ood`: what `open_images` takes
    calibrated: str = ""  # folder for a copy of the model with the temperature that `calibration` fitted


class EvaluateKeywords(TypedDict, total=False):
    """Keywords of `evaluate`: the fields of `EvaluateOptions`, and `trust`."""

    batch_size: int
    device: Literal["auto", "cpu", "cuda", "mps"]
    workers: int | Literal["auto"]
    seed: int
    cache: bool
    lenient: bool
    max_pixels: int | Literal["model"]
    ood_data: str
    calibrated: str
    trust: bool


def evaluate(
    model: str | Path | LoadedModel,
    data: str | Path | Samples,
    *,
    with_: str | Iterable[str | Evaluator] = "accuracy",
    split: str = "",
    root: str = "",
    preprocessing: Preprocessing | None = None,
    progress: Progress = no_progress,
    **settings: Unpack[EvaluateKeywords],
) -> Evaluation:
    """Evaluate a model: `vitral.evaluate("runs/photos", "photos/", with_=("accuracy", "knn"), seed=1)`.

    The model is a path that `vitral.load` takes, or its result, which is then moved to the device. The default split is
    test, or val where there is no test. A dataset without splits is split as the run of the model split it; if that run
    is not found, the default split is used and a note says so. The preprocessing is the bundle's; a different one is
    refused. `trust` allows a model with classes of your own to import them. `calibrated` writes a copy of the model
    with the temperature that the evaluator `calibration` fitted.
    """
    trust = settings.pop("trust", False)
    options, evaluators = override(EvaluateOptions(), settings), parse_evaluators(with_)
    _check_calibrated(options.calibrated, evaluators)
    with trusted(trust):
        samples = data if isinstance(data, Samples) else open_data(str(data), split_config(model), root)
        if any(evaluator.kind == "calibration" for evaluator in evaluators):
            samples = _with_held_out(samples, model)
        chosen = choose_split(samples, split)
        loaded = model if isinstance(model, LoadedModel) else load(model)
    if preprocessing is not None:
        check_same_preprocessing(loaded.bundle.preprocessing, preprocessing)
    recipe = Recipe(device=options.device, workers=options.workers)
    limits = {} if options.max_pixels == "model" else {"pixel_limit": options.max_pixels}
    needs = loaded.bundle.preprocessing.with_decoding(**limits, lenient=options.lenient)
    bundle = loaded.bundle.model_copy(update={"preprocessing": needs})
    device = select_device(recipe)
    cache = default_cache() if options.cache else FeatureCache()
    workers, engines = num_workers(recipe), default_engines()
    others = open_images(options.ood_data) if options.ood_data else None
    context = EvaluationContext(device, options.batch_size, workers, options.seed, cache, progress, engines, others)
    subject = SubjectModel(loaded.model.to(device), bundle, samples, chosen, context)
    results = run_evaluators(evaluators, subject)
    if options.calibrated:
        _write_calibrated(Path(options.calibrated).expanduser(), loaded, results)
    return Evaluation(
        model="a model in memory" if isinstance(model, LoadedModel) else str(model),
        data=samples.where,
        split=chosen,
        images=len(samples.of(chosen)),
        classes=len(samples.classes),
        seed=options.seed,
        results=results,
        notes=(*samples.notes, *data_notes(model, samples, loaded.bundle)),
    )


def _check_calibrated(out: str, evaluators: Iterable[Evaluator]) -> None:
    """Raise before any work if no temperature could be written."""
    if not out:
        return
    if all(evaluator.kind != "calibration" for evaluator in evaluators):
        message, hint = "only calibration fits a temperature", "add it: --with calibration"
        raise ConfigError(message, code="config.conflict", where="--calibrated", hint=hint)
    if os.path.lexists(Path(out).expanduser()):
        message, hint = "already exists and is not overwritten", "choose the name of a new folder"
        raise ConfigError(message, code="config.path_exists", where=out, hint=hint)


def _with_held_out(samples: Samples, model: str | Path | LoadedModel) -> Samples:
    """The samples with the validation images that the run of the model held out from the training images, if any."""
    recipe = run_recipe(model)
    if recipe is None or not recipe.data.hold_out or samples.of("val"):
        return samples
    return hold_out(samples, StratifiedSplit(fraction=recipe.data.hold_out, seed=recipe.data.split.seed))


def _write_calibrated(home: Path, loaded: LoadedModel, results: Iterable[EvaluatorResult]) -> None:
    """Write a copy of the bundle whose head divides by the fitted temperature; the weights are the same."""
    found = next(each for each in results if isinstance(each, CalibrationResult))
    head = loaded.bundle.model.head
    if found.temperature is None or isinstance(head, NoHead):
        message, hint = f"no bundle was written: {found.note}", "use data with validation images"
        raise DataError(message, code="data.too_few", where="--calibrated", hint=hint)
    scaled = head.model_copy(update={"temperature": head.temperature * found.temperature})
    source = f"calibrated on {found.fit_images:,} held-out images"
    bundle = loaded.bundle.model_copy(
        update={
            "model": loaded.bundle.model.model_copy(update={"head": scaled}),
            "source": "; ".join(filter(None, (loaded.bundle.source, source))),
        }
    )
    tensors = {name: tensor.detach().cpu() for name, tensor in loaded.model.state_dict().items()}
    with wrap_write_errors(home):
        make_folders(home.parent)
    write_bundle(home, bundle, tensors, render_card(bundle, CardFacts(home.absolute().name, None, ())))


def split_config(model: str | Path | LoadedModel) -> StratifiedSplit:
    """How to split a dataset without splits: as the run of the model did, so that no training image is evaluated."""
    recipe = run_recipe(model)
    return recipe.data.split if recipe else StratifiedSplit()


def run_recipe(model: str | Path | LoadedModel) -> Recipe | None:
    """The recipe of the run that a model is from, if the run is found."""
    if isinstance(model, LoadedModel) or str(model).startswith(PREFIX):
        return None
    home = find_bundle(Path(model).expanduser().resolve())  # the run is the parent folder of its bundles
    file = RunFolder(home.parent).recipe if home else None
    if home is None or file is None or not file.is_file():
        return None
    try:
        with use_copies(home / CODE):
            return read_recipe(read_file(file))
    except ConfigError as error:
        where = ", ".join(filter(None, (str(file), error.where)))
        hint = error.hint or "repair it, or move the bundle to another folder"
        raise ConfigError(error.message, code=error.code, where=where, hint=hint) from None


def choose_split(samples: Samples, name: str) -> Split:
    """The split to evaluate: the one named, or test, or val where there is no test."""
    if name not in {"", *EVAL_SPLITS}:
        message, hint = f"expected test or val, got {name!r}", "use one of them, or leave it out"
        raise ConfigError(message, code="config.unknown_name", where="--split", hint=hint)
    split = first_split(samples, *(each for each in EVAL_SPLITS if name in {"", each}))
    if split is None:
        held = ", ".join(f"{len(samples.of(each)):,} {each}" for each in SPLITS if samples.of(each))
        message = f"no images in the split {name or 'test or val'!r}; the dataset has {held}"
        raise DataError(message, code="data.empty", where=samples.where, hint="choose another split or other data")
    return split


def data_notes(model: str | Path | LoadedModel, samples: Samples, bundle: Bundle) -> Iterator[str]:
    """Remarks on the classes and the split of the data, for a classifier."""
    if bundle.task != "classify":
        return
    if are_matched_by_number(samples, bundle):
        yield (
            f"the {len(bundle.classes):,} classes have other names in the model than in {samples.where}; they were "
            "matched by number, in the order that all published models use"
        )
    elif samples.classes != bundle.classes and set(samples.classes) <= set(bundle.classes):
        if len(samples.classes) < len(bundle.classes):
            yield f"the data has {len(samples.classes):,} of the model's {len(bundle.classes):,} classes"
        else:
            yield "the classes of the data are in a different order from the model's; they were matched by name"
    if samples.divided and not run_recipe(model):
        unknown = "the run of this model was not found"
        yield f"{unknown}: if it was trained on this dataset, some images may be training images"
