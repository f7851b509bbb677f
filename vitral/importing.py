"""Imports of torch and of all that needs it, a tenth of a second quicker."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collecting() -> Iterator[None]:
    """Have the garbage collector rest: what modules make as they are imported stays, and it would look through it all
    again and again."""
    working = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if working:
            gc.enable()
