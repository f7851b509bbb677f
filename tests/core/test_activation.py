"""Probabilities of arrays and tensors, by softmax and by sigmoid."""

import numpy as np
import pytest
import torch

from vitral.core.activation import Activation, probabilities

LOGITS = np.array([[-800.0, 0.0, 3.0], [700.0, -1.5, 2.0]], dtype=np.float32)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_arrays_and_tensors_agree_with_the_formula(activation: Activation) -> None:
    wide = torch.from_numpy(LOGITS).double()
    expected = wide.softmax(dim=1) if activation == "softmax" else 1 / (1 + (-wide).exp())
    torch.testing.assert_close(probabilities(wide, activation), expected)
    with np.errstate(all="raise", under="ignore"):
        found = probabilities(LOGITS, activation)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected.numpy(), rtol=1e-6, atol=1e-30)


def test_tensors_keep_their_type_and_graph() -> None:
    logits = torch.zeros(2, 3, requires_grad=True)
    assert probabilities(logits, "sigmoid").requires_grad
    assert probabilities(logits.detach().half(), "softmax").dtype == torch.float16
