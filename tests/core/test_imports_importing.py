"""The garbage collector rests while modules are imported, and works on; a module is there once it is whole."""

import gc
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from vitral.core.imports import is_imported, pause_gc


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.own = self


def fail() -> None:
    with pause_gc():
        raise ImportError


@pytest.mark.parametrize("working", [True, False])
def test_the_collector_is_left_as_it_was(working: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if working else gc.disable)()
        with pause_gc():
            assert not gc.isenabled()
        assert gc.isenabled() == working
        with pytest.raises(ImportError):
            fail()
        assert gc.isenabled() == working
    finally:
        (gc.enable if before else gc.disable)()


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """The tests freeze what they collected; here nothing is frozen."""
    gc.unfreeze()
    yield
    gc.freeze()


@pytest.mark.usefixtures("unfrozen")
def test_what_was_made_meanwhile_counts_as_old_and_may_still_be_collected(monkeypatch: pytest.MonkeyPatch) -> None:
    with pause_gc():
        made: list[object] = []
        made.append(made)
    assert not any(each is made for each in gc.get_objects(generation=2))  # nothing was imported
    with pause_gc():
        monkeypatch.setitem(sys.modules, "new_module", ModuleType("new_module"))
    assert any(each is made for each in gc.get_objects(generation=2))
    assert gc.get_freeze_count() == 0
    with pause_gc():
        gone = weakref.finalize(Cycle(), lambda: None)
    assert gone.alive
    gc.collect()
    assert not gone.alive


@pytest.mark.usefixtures("unfrozen")
def test_what_somebody_has_frozen_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.freeze()
    try:
        frozen = gc.get_freeze_count()
        with pause_gc():
            monkeypatch.setitem(sys.modules, "new_module", ModuleType("new_module"))
            made: list[object] = []
            made.append(made)
        assert gc.get_freeze_count() == frozen > 0
    finally:
        gc.unfreeze()


def test_a_module_is_there_once_it_is_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "slow_module.py").write_text(
        "from vitral.core.imports import is_imported\nmidway = is_imported(__name__)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert not is_imported("slow_module")
    import slow_module  # type: ignore[import-not-found]

    assert slow_module.midway is False
    assert is_imported("slow_module")
    monkeypatch.delitem(sys.modules, "slow_module")
    assert not is_imported("slow_module")
