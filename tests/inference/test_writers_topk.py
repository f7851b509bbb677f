"""From logits to what is likely."""

import numpy as np
import torch

from vitral.core.activation import probabilities
from vitral.inference.writers import topk

LOGITS = np.random.default_rng(0).normal(scale=5, size=(6, 9)).astype(np.float32)


def test_probabilities_are_the_softmax() -> None:
    expected = torch.from_numpy(LOGITS).double().softmax(dim=1).numpy()
    assert np.abs(probabilities(LOGITS, "softmax") - expected).max() < 1e-7
    large = probabilities(np.array([[3e38, -3e38]], dtype=np.float32), "softmax")
    assert large.tolist() == [[1, 0]]
    assert probabilities(LOGITS[:0], "softmax").shape == (0, 9)


def test_the_likeliest_come_first_with_their_probabilities() -> None:
    chances = probabilities(LOGITS, "softmax")
    for row, found in zip(chances, topk(LOGITS, 4), strict=True):
        assert [number for _, number in found] == sorted(row.tolist(), reverse=True)[:4]
        assert [row[place] for place, _ in found] == [np.float32(number) for _, number in found]
    assert [len(found) for found in topk(LOGITS, 50)] == [9] * 6
    assert list(topk(LOGITS[:0], 4)) == []


def test_equal_ones_stay_in_order_and_those_too_small_to_tell_apart_do_not() -> None:
    logits = np.array([[1, 1, 1], [0, -200, -150]], dtype=np.float32)
    assert [[place for place, _ in found] for found in topk(logits, 3)] == [[0, 1, 2], [0, 2, 1]]
