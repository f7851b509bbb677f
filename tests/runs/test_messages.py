"""What a user reads of a run at its start, when it resumes, and of weights that would do better."""

import shlex
from dataclasses import replace
from importlib import util
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tests.runs.small import begin, photos, recipe_and_samples
from vitral.core.config import override
from vitral.models import BasePosition, BuildContext, Position
from vitral.models.registry import model_config
from vitral.recipes.registry import HUNDREDS
from vitral.runs import messages
from vitral.runs.folder import RunFolder
from vitral.runs.messages import (
    data_arguments,
    describe_images,
    describe_model,
    next_commands,
    resume_command,
    suggest_weights,
)
from vitral.runs.request import OBJECT
from vitral.runs.train import resume
from vitral.training.optimizers import BaseOptimizer


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("S/16", "ViT-S/16, 12 layers of width 384"),
        ("vit_base_patch32_224", "ViT-B/32, 12 layers of width 768"),
        ("R50+B/16", "ViT, 12 layers of width 768"),
        ("R50x1", "ResNet, stages of 3, 4, 6, 3"),
    ],
)
def test_a_model_is_named_as_in_the_paper(name: str, text: str) -> None:
    assert describe_model(model_config(name)) == text


def test_a_single_layer_is_one_layer() -> None:
    assert describe_model(model_config("S/16", settings={"depth": 1})) == "ViT, 1 layer of width 384"


def test_patches_are_counted_for_the_images_of_the_model() -> None:
    assert describe_images(model_config("B/16", image_size="224x320")) == "224x320 pixels, 14x20 = 280 patches of 16x16"
    assert describe_images(model_config("R50x1")) == "224x224 pixels"


def test_a_run_starts_with_its_main_facts(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitral")
    begin(home, "microbatches=3")
    facts = dict(line.split("  ", 1) for line in caplog.messages if "  " in line)
    facts = {name: text.strip() for name, text in facts.items()}
    assert facts["model"].startswith("ViT, 2 layers of width 16, ")
    assert facts["model"].endswith(" parameters")
    assert facts["images"] == "16x16 pixels, 2x2 = 4 patches of 8x8"
    assert facts["data"] == f"{home / 'photos'}: 24 train, 8 val images of 2 classes"
    assert facts["training"] == "3 epochs, 12 steps, batch size 5, in 3 microbatches"
    assert facts["device"] == f"cpu, {torch.get_num_threads()} thread{'s' * (torch.get_num_threads() > 1)}, float32"
    assert facts["run folder"] == str(home / "run")


def test_weights_that_are_not_all_trained_are_counted(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    begin(home, out="first")
    caplog.set_level("INFO", "vitral")
    begin(home, f"from={home / 'first'}", "finetune=head", "steps=1")
    line = next(line for line in caplog.messages if line.startswith("model "))
    assert "parameters (34 trained)" in line  # a head of 16 inputs, 2 classes and their biases


def test_a_run_that_resumes_is_recalled_in_two_lines(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    run = begin(home)
    caplog.set_level("INFO", "vitral")
    resume(str(home / "run"))
    what, where, *_ = caplog.messages
    assert what.startswith(f"resuming {home / 'run'}: ViT, 2 layers of width 16, ")
    assert what.endswith(f", on {home / 'photos'}")
    assert run.evaluation is not None
    best = f"best val accuracy {100 * run.evaluation.accuracy.top1:.1f}%"
    assert where.startswith(f"step 12 of 12 (epoch 3 of 3), {best} at epoch ")
    assert where.endswith("; training is complete")


def test_a_few_photos_from_scratch_name_the_command_that_does_better(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "my photos"))
    monkeypatch.setattr(messages, "find_spec", lambda name: None)
    line = suggest_weights(recipe, samples)
    assert line.startswith("tip: 24 photos ")
    assert "pip install 'vitral[hub]'" in line
    assert "88 MB, license apache-2.0" in line
    assert messages.MEASURED in line
    assert "\n" not in line
    words = shlex.split(line[line.index("vitral train") :])
    assert words == ["vitral", "train", f"{tmp_path}/my photos", "--weights", messages.SUGGESTED_WEIGHTS]
    monkeypatch.setattr(messages, "find_spec", util.find_spec if util.find_spec("huggingface_hub") else lambda name: 1)
    assert "pip install" not in suggest_weights(recipe, samples)


def test_no_weights_are_suggested_where_they_would_not_help(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    many = replace(samples, items=tuple(item for _ in range(HUNDREDS) for item in samples.items))
    assert suggest_weights(recipe, samples)
    assert not suggest_weights(recipe, many)
    assert not suggest_weights(recipe, replace(samples, where="sample"))
    assert not suggest_weights(recipe.model_copy(update={"weights": "runs/first"}), samples)
    gray = recipe.model_copy(update={"model": recipe.model.model_copy(update={"channels": 1})})
    assert not suggest_weights(gray, samples)


def test_data_that_no_command_can_name_is_used_from_python(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    recipe = override(recipe, {"data.path": f"{OBJECT}Birds"})
    (command,) = next_commands(RunFolder(Path("runs/a")), recipe, samples)
    assert command[1] == "vitral.Predictor('runs/a')"
    assert suggest_weights(recipe, samples).endswith('vitral.train(..., weights="dinov2-small")')


class Own(BasePosition):
    def build(self, context: BuildContext) -> Position:
        raise NotImplementedError


class OwnOptimizer(BaseOptimizer):
    lr: float = 1.0

    def build(self, task: nn.Module) -> Optimizer:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("part", "trusted"),
    [({"position": Own()}, {"evaluate", "predict", "explain"}), ({"optimizer": OwnOptimizer()}, {"evaluate"})],
)
def test_commands_trust_the_classes_of_a_user_that_they_need(
    tmp_path: Path, part: dict[str, object], trusted: set[str]
) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    own, folder = override(recipe, part), RunFolder(Path("runs/a"))
    verbs = {command.split()[1] for _, command in next_commands(folder, own, samples) if command.endswith(" --trust")}
    assert verbs == trusted
    assert not any("--trust" in command for _, command in next_commands(folder, recipe, samples))
    assert resume_command(folder, recipe, ["wandb"]) == "vitral train --resume runs/a --tracker wandb"
    assert resume_command(folder, recipe, ["a; rm b"]).endswith(" --tracker 'a; rm b'")  # text of a file in the run
    assert resume_command(folder, own, ()) == "vitral train --resume runs/a --trust"
    data = override(recipe, {"data.path": "./birds.py:Birds"})
    assert data_arguments(data) == "./birds.py:Birds --trust"
    assert resume_command(folder, data, ()).endswith(" --trust")
    object_data = override(recipe, {"data.path": f"{OBJECT}Birds"})
    assert resume_command(folder, object_data, ()) == "vitral train --resume runs/a"


def test_images_that_are_no_files_are_not_suggested(tmp_path: Path) -> None:
    recipe, samples = recipe_and_samples(photos(tmp_path / "photos"))
    (tmp_path / "photos/val/bright/0.png").unlink()
    assert [purpose for purpose, _ in next_commands(RunFolder(Path("runs/a")), recipe, samples)] == ["evaluate it"]
    own = override(recipe, {"data.path": "./birds.py:Birds"})
    assert [command for _, command in next_commands(RunFolder(Path("runs/a")), own, samples)] == [
        "vitral.Predictor('runs/a')"
    ]
    only_train = replace(samples, items=samples.of("train"))
    commands = [command for _, command in next_commands(RunFolder(Path("runs/a")), recipe, only_train)]
    assert not any("evaluate" in command for command in commands)
