"""The garbage collector rests while modules are imported, and works on as before."""

import gc

import pytest

from vitral.importing import without_collecting


def fail() -> None:
    with without_collecting():
        raise ImportError


@pytest.mark.parametrize("working", [True, False])
def test_the_collector_is_left_as_it_was(working: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if working else gc.disable)()
        with without_collecting():
            assert not gc.isenabled()
        assert gc.isenabled() == working
        with pytest.raises(ImportError):
            fail()
        assert gc.isenabled() == working
    finally:
        (gc.enable if before else gc.disable)()
