"""What two processes say to each other."""

import json
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.errors import raises
from vitral.core.errors import DataError, VitralError
from vitral.data.loading.sampler import World
from vitral.training.distributed import process_group
from vitral.training.distributed.process_group import describe_error, open_store


@pytest.fixture
def heard(played: Path) -> list[dict[str, Any]]:
    return [json.loads((played / f"heard-{rank}.json").read_text()) for rank in range(2)]


def test_all_processes_hear_the_same(heard: list[dict[str, Any]]) -> None:
    assert [each.pop("first") for each in heard] == [True, False]
    assert heard[0] == heard[1]


def test_an_outcome_is_the_mean_over_all_images(heard: list[dict[str, Any]]) -> None:
    # Three images of loss 1 and accuracy 0, one of loss 2 and accuracy 0.5; and a batch without any.
    assert heard[0]["joined"] == [(3 * 1 + 2) / 4, 4, 0.5 / 4, 0]


def test_rows_of_unequal_numbers_are_gathered_in_turn(heard: list[dict[str, Any]]) -> None:
    assert heard[0]["gathered"] == [[0, 0], [10, 10], [11, 11], [12, 12]]
    assert heard[0]["kind"] == str(torch.bfloat16)
    assert heard[0]["flags"] == [True, False, False]
    assert heard[0]["none"] == [0, 3]


def test_the_first_process_decides(heard: list[dict[str, Any]]) -> None:
    assert heard[1]["shared"] == {"é": [0, None, 0.1]}
    assert heard[1]["decided"] == "0"


def test_one_is_enough_for_any(heard: list[dict[str, Any]]) -> None:
    assert heard[0]["most"] == 0  # of 0 and -1
    assert heard[0]["any"] == [True, False]


def test_when_a_meeting_is_over_nothing_holds_what_was_said(played: Path) -> None:
    for rank in range(2):
        assert json.loads((played / f"held-{rank}.json").read_text()) == [300, 0]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            DataError("truncated", code="data.truncated_image", where="a.jpg", hint="remove it"),
            "ended: a.jpg: truncated; remove it",
        ),
        (VitralError("two\n  lines", code="run.bad_log"), "ended: two lines"),
        (KeyboardInterrupt(), "ended: KeyboardInterrupt"),
        (ValueError("x" * 1000), "ended: ValueError " + "x" * 489),
    ],
)
def test_an_end_is_told_in_a_line(error: BaseException, words: str) -> None:
    assert describe_error(error) == words


@pytest.mark.parametrize("launched", [False, True], ids=["by hand", "by a torchrun that was killed"])
def test_processes_that_do_not_meet_name_the_place(launched: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", port)
    monkeypatch.setenv("TORCHELASTIC_USE_AGENT_STORE", str(launched))
    waits = "CONNECT_TIMEOUT" if launched else "RENDEZVOUS_TIMEOUT"
    monkeypatch.setattr(process_group, waits, timedelta(seconds=1))
    with raises("run.rendezvous_failed", f"127.0.0.1:{port}", "2 processes"):
        open_store(World(rank=1, size=2))  # nobody is there
