"""Imports of torch and of all that needs it, a tenth of a second quicker; and whether they are done."""

import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Have the garbage collector rest: what modules make as they are imported stays, and it would look through it all
    again and again. Afterwards all that is there counts as old, which it looks through last."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            if not gc.get_freeze_count():  # else somebody has frozen what is to stay so
                gc.freeze()
                gc.unfreeze()  # to the oldest generation
            gc.enable()


def is_imported(name: str) -> bool:
    """Whether a module is there, and whole: another thread may be in the midst of importing it."""
    module = sys.modules.get(name)
    return module is not None and not getattr(module.__spec__, "_initializing", False)
