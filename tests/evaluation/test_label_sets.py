"""Accuracy against sets of labels, by brute force and on ImageNet's ReaL labels."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.data.datasets.published.downloads import write, write_imagenet
from tests.errors import raises
from tests.evaluation.subjects import striped_model, stripes, subject
from vitral.evaluation.accuracy import AccuracyEvaluator
from vitral.evaluation.evaluators import run_evaluators
from vitral.evaluation.label_sets import LabelSetsEvaluator, LabelSetsResult, compute_label_sets
from vitral.runs.evaluate import evaluate


def test_it_agrees_with_brute_force() -> None:
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(200, 9)).astype(np.float32))
    sets = [rng.choice(9, size=rng.integers(1, 4), replace=False).tolist() for _ in range(200)]
    found = compute_label_sets(logits, sets)
    order = np.argsort(-logits.numpy(), axis=1).tolist()
    assert found.top1 == np.mean([ranks[0] in labels for ranks, labels in zip(order, sets, strict=True)])
    assert found.top5 == np.mean([bool({*ranks[:5]} & {*labels}) for ranks, labels in zip(order, sets, strict=True)])
    assert found.single_label == sum(len(labels) == 1 for labels in sets)
    assert found.mean_labels == pytest.approx(np.mean([len(labels) for labels in sets]))


def test_imagenet_with_real_labels_is_evaluated_by_number_and_says_so(tmp_path: Path) -> None:
    write(write_imagenet(tmp_path), {"real.json": json.dumps([[2, 0], [], [0], [1, 2]]).encode()})
    loaded = striped_model(("tench", "kit fox", "dumbbell"))
    found = evaluate(loaded, "imagenet-real", root=str(tmp_path), with_="label_sets", workers=0, cache=False)
    assert isinstance(result := found.results[0], LabelSetsResult)
    assert (result.images, result.single_label, found.split) == (3, 1, "val")
    assert any("matched by number" in note for note in found.notes)
    assert "any label of the image" in str(found)
    single = evaluate(loaded, "imagenet", root=str(tmp_path), workers=0, cache=False)
    assert single.images == 4


def test_sets_of_labels_and_single_labels_are_not_mixed_up() -> None:
    plain = stripes()
    several = replace(plain, label_sets={item.name: (0, 1) for item in plain.items})
    with raises("config.unsupported", "--with accuracy", "--with label_sets"):
        run_evaluators([AccuracyEvaluator()], subject(samples=several))
    with raises("config.unsupported", "--with label_sets", "imagenet-real"):
        run_evaluators([LabelSetsEvaluator()], subject(samples=plain))
    (found,) = run_evaluators([LabelSetsEvaluator()], subject(samples=several))
    whole = subject()
    predicted = whole.predictions(whole.train_size).predicted
    assert isinstance(found, LabelSetsResult)
    assert found.top1 == pytest.approx((predicted < 2).double().mean().item())
