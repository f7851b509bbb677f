"""An evaluation: a model and a set of images become what each judge finds.

Fast engines for an evaluation, in which tokens are merged.
"""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from vitral.core.config import Config, override
from vitral.core.errors import ConfigError, DataError
from vitral.core.machine import keep_freed_memory
from vitral.data.datasets.source import open_data
from vitral.data.datasets.split import StratifiedSplit
from vitral.data.samples import SPLITS, Samples, Split
from vitral.data.transforms.preprocessing import Preprocessing
from vitral.evaluation.evaluators import Evaluation, Evaluator, parse_evaluators, run_evaluators
from vitral.evaluation.feature_cache import NoCache, default_cache
from vitral.evaluation.subject import (
    EngineFunction,
    EvaluationContext,
    Progress,
    SubjectModel,
    check_same_preprocessing,
    no_progress,
)
from vitral.inference.engines.auto import EngineConfig
from vitral.inference.engines.eager import Eager
from vitral.inference.engines.onnxruntime import OnnxRuntime
from vitral.inference.engines.openvino import OpenVino
from vitral.inference.graph.graph import build_graph
from vitral.inference.graph.token_merging import TokenMerging
from vitral.models.vit import Vit
from vitral.recipes.recipe import Recipe, read_recipe
from vitral.runs.build import num_workers, select_device
from vitral.weights.bundle import Bundle
from vitral.weights.hub import PREFIX
from vitral.weights.load import LoadedModel, find_bundle, load


@dataclass(frozen=True)
class EngineFactory:
    """Engines of one kind, on the processor."""

    kind: EngineConfig

    @property
    def engine(self) -> str:
        return self.kind.kind

    def check(self, bundle: Bundle) -> None:
        TokenMerging(per_layer=1).check(bundle.model)

    def tokens_left(self, bundle: Bundle, per_layer: int) -> int:
        assert isinstance(bundle.model, Vit)
        layout = bundle.model.layout(bundle.preprocessing.image_size)
        return layout.length() - sum(
            TokenMerging(per_layer=per_layer).removed_per_layer(layout, bundle.model.depth)[:-1]
        )

    def build(self, loaded: LoadedModel, per_layer: int) -> EngineFunction:
        model, bundle = loaded
        here = all(weight.device.type == "cpu" for weight in model.parameters())
        own = loaded if here else LoadedModel(deepcopy(model).cpu(), bundle)
        return self.kind.build(build_graph(own, merging=TokenMerging(per_layer=per_layer))).run


def default_engines() -> EngineFactory:
    """Of the kind that is the fastest as a rule, of those that are installed."""
    if find_spec("onnx") and find_spec("openvino"):
        return EngineFactory(OpenVino())
    if find_spec("onnx") and find_spec("onnxruntime"):
        return EngineFactory(OnnxRuntime())
    return EngineFactory(Eager())


RECIPE = "recipe.json"  # of a run
EVAL_SPLITS: tuple[Split, ...] = ("test", "val")


class EvaluateOptions(Config):
    """How an evaluation is run."""

    batch_size: int = Field(
        default=64, ge=1
    )  # images at a time; those larger than the trained size come fewer at a time
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    workers: Annotated[int, Field(ge=0)] | Literal["auto"] = "auto"  # processes that read images; they change nothing
    seed: int = Field(default=0, ge=0)  # of folds and draws
    cache: bool = True  # whether features are kept on the disk for the next time


def evaluate(
    model: str | Path | LoadedModel,
    data: str | Samples,
    *settings: str,
    with_: str | Iterable[str | Evaluator] = "accuracy",
    split: str = "",
    root: str = "",
    preprocessing: Preprocessing | None = None,
    progress: Progress = no_progress,
) -> Evaluation:
    """What the judges find: `vitral.evaluate("runs/photos", "photos/", "seed=1", with_=("accuracy", "knn"))`.

    The model is what `vitral.load` takes, or gives (it is then moved to the device). Without the name of a split the
    images for testing judge, or those for validation where there are none; a set that has no splits is divided as the
    run of the model divided it, or as is usual where that run is not at hand, which is noted. The preprocessing is the
    bundle's; another one that is given is refused. Settings are `batch`, `device`, `workers`, `seed` and `cache`.
    """
    setup, judges = override(EvaluateOptions(), settings), parse_evaluators(with_)
    samples = data if isinstance(data, Samples) else open_data(data, split_config(model), root)
    chosen = choose_split(samples, split)
    loaded = model if isinstance(model, LoadedModel) else load(model)
    if preprocessing is not None:
        check_same_preprocessing(loaded.bundle.preprocessing, preprocessing)
    recipe = Recipe(device=setup.device, workers=setup.workers)
    device = select_device(recipe)
    cache = default_cache() if setup.cache else NoCache()
    tools = EvaluationContext(
        device, setup.batch_size, num_workers(recipe), setup.seed, cache, progress, default_engines()
    )
    keep_freed_memory()
    subject = SubjectModel(loaded.model.to(device), loaded.bundle, samples, chosen, tools)
    return Evaluation(
        model="a model in memory" if isinstance(model, LoadedModel) else str(model),
        data=samples.where,
        split=chosen,
        images=len(samples.of(chosen)),
        classes=len(samples.classes),
        seed=setup.seed,
        results=run_evaluators(judges, subject),
        notes=(
            *samples.notes,
            *_class_notes(samples, loaded.bundle),
            *_unknown_split_notes(model, samples, loaded.bundle),
        ),
    )


def split_config(model: str | Path | LoadedModel) -> StratifiedSplit:
    """How a set without a split is divided: as the run of the model did, so that no training image is judged."""
    return run_split_config(model) or StratifiedSplit()


def run_split_config(model: str | Path | LoadedModel) -> StratifiedSplit | None:
    """How the run of the model divided such a set; nothing where the run is not at hand."""
    recipe = run_recipe(model)
    return recipe.data.split if recipe else None


def run_recipe(model: str | Path | LoadedModel) -> Recipe | None:
    """The recipe of the run that a model is of; nothing where the run is not at hand."""
    if isinstance(model, LoadedModel) or str(model).startswith(PREFIX):
        return None
    home = find_bundle(Path(model).expanduser().resolve())  # a run is the folder around its bundles
    file = home.parent / RECIPE if home else None
    if file is None or not file.is_file():
        return None
    try:
        return read_recipe(file.read_bytes())
    except ConfigError as error:
        where = ", ".join(filter(None, (str(file), error.where)))
        hint = error.hint or "mend it, or move the bundle away"
        raise ConfigError(error.message, code=error.code, where=where, hint=hint) from None


def choose_split(samples: Samples, wanted: str) -> Split:
    """The split that judges: the one wanted, or test, or val where there is no test."""
    if wanted and wanted not in EVAL_SPLITS:
        raise ConfigError(
            f"expected test or val, got {wanted!r}",
            code="config.unknown_name",
            where="--split",
            hint="leave it out, or choose one",
        )
    for split in EVAL_SPLITS:
        if split == (wanted or split) and samples.of(split):
            return split
    held = ", ".join(f"{len(samples.of(each)):,} {each}" for each in SPLITS if samples.of(each))
    message = f"there are no images in {wanted or 'test and val'!r}; this set has {held}"
    hint = "choose the other split, or give other data"
    raise DataError(message, code="data.empty", where=samples.where, hint=hint)


def _unknown_split_notes(model: str | Path | LoadedModel, samples: Samples, bundle: Bundle) -> list[str]:
    """What a model has learned from nobody can tell apart from its run."""
    if run_split_config(model) or bundle.task != "classify" or not samples.divided:
        return []
    return [
        "the run of this model is not at hand: if it learned from this set by another division, it has seen some of it"
    ]


def _class_notes(samples: Samples, bundle: Bundle) -> list[str]:
    if (
        bundle.task != "classify"
        or samples.classes == bundle.classes
        or not set(samples.classes) <= set(bundle.classes)
    ):
        return []
    if len(samples.classes) < len(bundle.classes):
        return [f"the data has {len(samples.classes):,} of the {len(bundle.classes):,} classes that the model names"]
    return ["the classes of the data have another order than the model's; they were matched by name"]
