"""A module whose first use waits for a check: no way to its weights passes by, and nothing is left afterwards."""

import copy
import pickle
from collections.abc import Callable
from threading import Event, Thread

import pytest
import torch
from torch import nn

from vitral.models.first_use import check_on_first_use, finish_check


class Waiting:
    """A check that counts its calls, and fails as long as `error` is set."""

    def __init__(self, error: Exception | None = None) -> None:
        self.calls, self.error = 0, error

    def __call__(self) -> None:
        self.calls += 1
        if self.error:
            raise self.error


USES: dict[str, Callable[[nn.Module], object]] = {
    "finish": finish_check,
    "call": lambda model: model(torch.zeros(1, 2)),
    "forward": lambda model: model.forward,
    "state_dict": lambda model: model.state_dict(),
    "parameters": lambda model: list(model.parameters()),
    "modules": lambda model: list(model.modules()),
    "buffers": lambda model: list(model.buffers()),
    "submodule": lambda model: model[0],  # type: ignore[index]
    "iterate": lambda model: [*model],  # type: ignore[misc]
    "apply": lambda model: model.apply(lambda part: None),
    "to": lambda model: model.to(torch.float64),
    "eval": lambda model: model.eval(),
    "train": lambda model: model.train(),
    "mode": lambda model: model.training,
    "hook": lambda model: model.register_forward_hook(lambda *_: None),
    "parametrize": lambda model: torch.nn.utils.parametrizations.weight_norm(model[0]),  # type: ignore[index]
    "set": lambda model: setattr(model, "note", 1),
    "delete": lambda model: delattr(model, "note") if hasattr(model, "note") else None,
    "dict": lambda model: model.__dict__["_modules"],
    "vars": lambda model: vars(model)["_modules"],
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
    "pickle": pickle.dumps,
    "repr": repr,
    "dir": dir,
    "compile": torch.compile,
    "compile in place": lambda model: model.compile(),
    "export": lambda model: torch.export.export(model, (torch.zeros(1, 2),)),
    "functional": lambda model: torch.func.functional_call(model, {}, (torch.zeros(1, 2),)),
    "optimizer": lambda model: torch.optim.SGD(model.parameters(), lr=0.1),
}


def module() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)).eval()


@pytest.mark.filterwarnings("ignore")  # of compilers that are still changing
@pytest.mark.parametrize("use", USES)
def test_every_use_waits_for_the_check_and_gets_its_error(use: str) -> None:
    model, check = module(), Waiting(RuntimeError("damaged"))
    check_on_first_use(model, check)
    for calls in (1, 2):  # the error stays
        with pytest.raises(RuntimeError, match="damaged"):
            USES[use](model)
        assert check.calls >= calls
    check.error, check.calls = None, 0
    USES[use](model)
    assert check.calls == 1
    assert type(model) is nn.Sequential
    USES[use](model)
    assert check.calls == 1  # it is not asked again


def test_a_model_that_was_checked_gives_the_same_outputs_and_copies() -> None:
    model, same, images = module(), module(), torch.randn(4, 2)
    check_on_first_use(model, Waiting())
    twin = pickle.loads(pickle.dumps(model))
    torch.testing.assert_close(model(images), same(images), rtol=0, atol=0)
    torch.testing.assert_close(twin(images), same(images), rtol=0, atol=0)
    assert type(twin) is type(copy.deepcopy(model)) is nn.Sequential


def test_what_it_is_can_be_asked_without_a_wait() -> None:
    model, check = module(), Waiting(RuntimeError("damaged"))
    check_on_first_use(model, check)
    assert isinstance(model, nn.Sequential)
    assert not isinstance(model, nn.Linear)
    assert type(model).__name__ == "Sequential"
    assert model in {model}
    assert check.calls == 0


def test_threads_that_use_it_at_once_all_wait() -> None:
    model, passed, got = module(), Event(), []
    check_on_first_use(model, lambda: assert_passed(passed))
    threads = [Thread(target=lambda: got.append(model(torch.zeros(1, 2)))) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert not got
    passed.set()
    for thread in threads:
        thread.join()
    assert len(got) == 4


def assert_passed(passed: Event) -> None:
    assert passed.wait(timeout=30)
