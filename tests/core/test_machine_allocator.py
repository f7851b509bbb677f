"""Keeping freed memory: fewer page faults, same numbers."""

import sys

import pytest

from tests.processes import run_forked

# Counts the page faults of ten large tensors that come and go, in a separate process: the setting is for good.
PROGRAM = """
import resource, sys, torch
from vitral.core.machine import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keep" else False
def turn():
    for _ in range(10):
        torch.ones(16_000_000)
turn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
turn()
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[bool, int]:
    done = run_forked(how, code=PROGRAM)
    assert (done.returncode, done.stderr) == (0, "")
    kept, count = done.stdout.split()
    return kept == "True", int(count)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only glibc can be told to keep memory")
def test_memory_that_is_kept_is_not_faulted_in_again() -> None:
    kept, few = faults("keep")
    if not kept:
        pytest.skip("this C library cannot be told to keep memory")
    _, many = faults("leave")
    assert few < many / 10
