import json
import shutil
from pathlib import Path

import pytest
import torch

import vitral
from tests.runs.small import SETTINGS, StopAfterEachStep, begin, content, photos, recipe_and_samples
from vitral.core.config import parse_settings
from vitral.explanation.walkthrough.describe import describe
from vitral.runs import train as start
from vitral.runs.artifacts import RunArtifacts, environment_facts, summarize_recipe
from vitral.runs.build import build_run
from vitral.runs.folder import RunFolder, capture_environment
from vitral.runs.train import resume, train
from vitral.training.callbacks import find_best
from vitral.training.checkpoints.checkpoint import checkpoint_path, open_checkpoint
from vitral.training.distributed.process_group import ProcessGroup
from vitral.training.finetune import merge_adapters
from vitral.training.metrics import read_metrics
from vitral.weights.bundle import read_bundle

HERE = ProcessGroup(torch.device("cpu"))
AVERAGED = ("average=ema", "average.decay=0.9", "optimizer.weight_decay=0.5")
TUNED = {
    "head": ("finetune=head",),
    "last_layers": ("finetune=last_layers", "finetune.count=1"),
    "lp_ft": ("finetune=lp_ft",),
    "staged": ("finetune=staged", "finetune.layers=1", "task.mixing=none"),
    "lora": ("finetune=lora", "finetune.rank=2"),
}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("trained")
    photos(home / "photos")
    begin(home, out="first")
    return home / "first"


@pytest.fixture
def first(home: Path, trained: Path) -> str:
    """A run to start from, as a setting."""
    return f"from={shutil.copytree(trained, home / 'first')}"


def test_the_cost_counts_a_forward_and_two_backward_passes_an_image(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path))
    parts = build_run(recipe, samples, HERE)
    cost = RunArtifacts(RunFolder(tmp_path), parts, HERE).cost(step=10)
    once = describe(recipe.model)
    assert cost.images == 50
    assert cost.multiply_adds == 3 * 50 * once.multiply_adds
    assert cost.parameters == once.parameters


def test_what_was_not_counted_is_not_told_and_views_are_named(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path), "task=dino", "images.views=two")
    parts = build_run(recipe, samples, HERE)
    assert RunArtifacts(RunFolder(tmp_path), parts, HERE).cost(step=10).multiply_adds is None
    assert dict(summarize_recipe(recipe))["images"] == "two, 2 views of each image"


def test_the_cost_of_stages_counts_the_layers_that_are_passed(home: Path, first: str) -> None:
    stages = '[{"layers": 1, "views": 2}, {"first": 4, "layers": 1}, {"first": 6}]'
    recipe, samples = recipe_and_samples(
        home / "photos", first, "steps=7", "task.mixing=none", "finetune=staged", f"finetune.stages={stages}"
    )
    cost = RunArtifacts(RunFolder(home), build_run(recipe, samples, HERE), HERE).cost(step=7)
    # Of two layers, one: forward and twice backward; both and twice one; both and twice both.
    passes = 4 * (0.5 + 1) + 2 * (1 + 1) + 1 * 3
    assert cost.multiply_adds == pytest.approx(5 * passes * describe(recipe.model).multiply_adds)


def test_the_last_word_is_on_images_for_testing_where_there_are_any(tmp_path: Path) -> None:
    photos(tmp_path / "photos", {"train": 12, "val": 3, "test": 5})
    run = train(
        str(tmp_path / "photos"),
        settings=parse_settings([*SETTINGS, "epochs=1"]),
        recipe="small_hundreds",
        out=str(tmp_path / "run"),
    )
    assert run.evaluation is not None
    assert (run.evaluation.split, run.evaluation.accuracy.images) == ("test", 10)
    page = (tmp_path / "run/report.html").read_text()
    assert "There are no images for validation" not in page
    assert json.loads((tmp_path / "run/recipe.json").read_text())["name"] in page


def test_the_environment_leaves_out_what_is_not_there() -> None:
    facts = dict(environment_facts(capture_environment("photos", "f" * 64, "e" * 64, "vitral train photos")))
    assert facts["data fingerprint"] == "f" * 64
    assert "" not in facts.values()


@pytest.mark.parametrize("kind", TUNED)
@pytest.mark.slow
def test_stopping_a_tuned_run_after_every_single_step_changes_no_byte(
    home: Path, first: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    caplog.set_level("INFO", "vitral")
    settings = (first, *TUNED[kind], *AVERAGED, "task.mixing=mixup", "model.block.drop_path_rate=0.2", "epochs=2")
    begin(home, *settings, out="unbroken")
    monkeypatch.setattr(start, "SignalHandler", StopAfterEachStep)
    run = begin(home, *settings)
    (home / "first").rename(home / "gone")
    while run.signal:
        run = resume(str(home / "run"))
    assert run.step == 8
    assert content(home / "run") == content(home / "unbroken")
    assert caplog.text.count("fitted the head") == (2 if kind in {"lp_ft", "staged"} else 0)  # once for each run


@pytest.mark.sampled(2)
@pytest.mark.parametrize("kind", ["head", "last_layers"])
def test_what_is_frozen_comes_out_as_it_went_in(home: Path, first: str, kind: str) -> None:
    begin(home, first, *TUNED[kind], *AVERAGED)
    before, after = (read_bundle(home / name / "best").tensors for name in ("first", "run"))
    learning = ("head.", "blocks.1.", "pool.norm.") if kind == "last_layers" else ("head.",)
    for name, tensor in before.items():
        assert torch.equal(tensor, after[name]) != name.startswith(learning), name


def test_the_bundles_of_schedule_free_training_are_of_its_averages(home: Path) -> None:
    run = begin(home, "optimizer=schedule_free_adamw", "checkpoints.every_seconds=0", "checkpoints.keep=20")
    best = find_best(read_metrics(home / "run"), "val").step
    for name, step in (("best", best), ("last", run.step)):
        saved = open_checkpoint(checkpoint_path(home / "run/checkpoints", step)).load().tensors
        found = read_bundle(home / "run" / name).tensors
        assert set(found) == {each.removeprefix("model.") for each in saved["average"]}
        assert all(torch.equal(tensor, saved["average"][f"model.{each}"]) for each, tensor in found.items())
        assert not torch.equal(found["head.linear.bias"], saved["task"]["model.head.linear.bias"])


def test_the_bundles_of_adapters_are_plain_models_of_the_averages(home: Path, first: str) -> None:
    run = begin(home, first, *TUNED["lora"], *AVERAGED, "checkpoints.every_seconds=0", "checkpoints.keep=20")
    best = find_best(read_metrics(home / "run"), "val").step
    assert best < run.step  # so it is made anew at the end, of a checkpoint
    for name, step in (("best", best), ("last", run.step)):
        saved = open_checkpoint(checkpoint_path(home / "run/checkpoints", step)).load().tensors
        assert any(each.endswith("parametrizations.weight.0.up.weight") for each in saved["average"])
        states = (saved["task"] | saved["average"], saved["task"])
        averaged, latest = (
            merge_adapters({n.removeprefix("model."): t for n, t in state.items()}, 16 / 2) for state in states
        )
        found = read_bundle(home / "run" / name).tensors
        assert set(found) == set(averaged) == set(read_bundle(home / "first/best").tensors)
        assert all(torch.equal(tensor, found[part]) for part, tensor in averaged.items())
        assert not torch.equal(latest["blocks.0.mlp.expand.weight"], found["blocks.0.mlp.expand.weight"])
    assert vitral.load(home / "run").bundle.model == run.recipe.model


def test_the_cost_counts_no_adapters(home: Path, first: str) -> None:
    recipe, samples = recipe_and_samples(home / "photos", first, *TUNED["lora"])
    parts = build_run(recipe, samples, HERE)
    assert RunArtifacts(RunFolder(home), parts, HERE).cost(step=1).parameters == describe(recipe.model).parameters


def test_the_report_of_a_few_photos_from_scratch_names_the_weights_that_do_better(home: Path) -> None:
    run = begin(home, "steps=1")
    assert "--weights dinov2-small" in run.report.read_text()
    assert "license apache-2.0" in run.report.read_text()
    tuned = begin(home, "steps=1", f"from={home / 'run'}", out="tuned")
    assert "dinov2-small" not in tuned.report.read_text()
