"""`vitral bench` as its users meet it: a real process, and one for each engine."""

from pathlib import Path

import pytest

from tests.cli.analysis.test_evaluate import tiny
from tests.processes import run_forked
from vitral import cli
from vitral.runs.bench import Bench, format_bench


def test_a_bundle_is_measured_with_each_engine_at_each_batch(tmp_path: Path) -> None:
    model = tiny(tmp_path)
    options = (
        "--batches",
        "1,3",
        "--engines",
        "eager,openvino",
        "--rounds",
        "2",
        "--threads",
        "1",
        "--json",
        "--quiet",
    )
    done = run_forked("bench", "--models", model, *options)
    assert (done.returncode, done.stderr) == (0, "")
    found = Bench.from_json(done.stdout)
    rows = [(row.engine, row.batch, len(row.seconds), row.own) for cell in found.cells for row in cell.rows]
    engines = ("vitral eager", "vitral openvino")
    assert rows == [(engine, batch, 2, True) for batch in (1, 3) for engine in engines]
    assert format_bench(found).splitlines()[3].split() == [model, "batch", "1", "batch", "3"]


@pytest.mark.parametrize(
    ("arguments", "code", "value"),
    [
        (("--batches", "1,x"), "config.wrong_type", "'x'"),
        (("--batches", "0"), "config.wrong_type", "'0'"),
        (("--engines", "open"), "config.unknown_name", "eager, compiled, onnxruntime, openvino"),
        (("--models", "S16"), "config.unknown_name", "'S16'"),
        (("--models", "S/16,"), "config.missing_value", "''"),
    ],
)
def test_a_wrong_option_is_refused(
    arguments: tuple[str, ...], code: str, value: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        cli.main(["bench", *arguments])
    shown, talk = capfd.readouterr()
    assert (left.value.code, shown) == (2, "")
    first = talk.splitlines()[0]
    assert first.startswith(f"error[{code}]: ")
    assert value in first
