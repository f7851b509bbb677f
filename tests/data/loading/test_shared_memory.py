"""Memory shared with started processes, forked and spawned."""

import numpy as np
import pytest

from vitral.data.loading.shared_memory import FORK, SPAWN, Context, SharedArray, create_shared


def write(shared: SharedArray) -> None:
    shared.array[1, 2] = 7


@pytest.mark.parametrize("context", [FORK, SPAWN])
def test_what_a_worker_writes_is_read_here(context: Context) -> None:
    shared = create_shared((2, 3), "int64", context)
    worker = context.Process(target=write, args=(shared,))
    worker.start()
    worker.join()
    np.testing.assert_array_equal(shared.array, [[0, 0, 0], [0, 0, 7]])


def test_room_for_nothing_is_an_empty_array() -> None:
    assert create_shared((0,), "uint8", FORK).array.shape == (0,)
