"""A module whose first use waits for a check, such as the hash of the file that its weights were mapped from.

`vitral.load` returns while the weights are still being hashed. Until the check has passed, the module is of a subclass
of its class that lets nothing through: whoever calls the module, or reads, sets or deletes an attribute of it (and so
its parameters, submodules and methods, to train, copy, compile, wrap or save it), waits for the check, and gets its
error, each time. Then the module is of its own class again, and nothing of this is left.
"""

from collections.abc import Callable
from typing import Any

from torch import nn


def check_on_first_use(module: nn.Module, check: Callable[[], None]) -> None:
    """Have the first use of a module call `check`, which returns once all is well, or raises."""
    own = type(module)

    def settle() -> None:
        check()
        object.__setattr__(module, "__class__", own)  # again, if two threads have waited: it changes nothing

    def get(self: nn.Module, name: str) -> Any:
        if name == "__class__":  # for `isinstance`, which uses nothing
            return own
        settle()
        return getattr(self, name)

    def set(self: nn.Module, name: str, value: Any) -> None:
        settle()
        setattr(self, name, value)

    def delete(self: nn.Module, name: str) -> None:
        settle()
        delattr(self, name)

    names = {"__module__": own.__module__, "__qualname__": own.__qualname__, "__doc__": own.__doc__}
    guards = {"__getattribute__": get, "__setattr__": set, "__delattr__": delete}
    module.__class__ = type(own.__name__, (own,), names | guards)


def finish_check(module: nn.Module) -> None:
    """Wait for the check of a module, if its first use would."""
    _ = module.training
