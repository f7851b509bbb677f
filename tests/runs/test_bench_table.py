"""The table of a bench, as a reader sees it."""

from vitral.runs.bench import Bench, BenchEngine, Cell, format_bench, summarize_cell

MATMUL = BenchEngine("matmul", "vitral.runs.bench_worker")
OURS, THEIRS = BenchEngine("vitral openvino", "vitral.runs.bench_worker"), BenchEngine("timm", "benchmarks.peers")


def cell(model: str, batch: int, **seconds: list[float]) -> Cell:
    names = {"ours": OURS, "theirs": THEIRS}
    times = {MATMUL: [0.1, 0.1], **{names[name]: each for name, each in seconds.items()}}
    return summarize_cell(model, batch, work=1e9, seconds=times, left_out=["huggingface: it is not there"])


def test_a_table_for_each_model_with_the_fastest_first() -> None:
    cells = (
        cell("S/16", 1, ours=[0.1, 0.2, 0.4], theirs=[0.4, 0.4, 0.4]),
        cell("S/16", 8, ours=[0.04], theirs=[0.08]),
        cell("B/16", 8, theirs=[0.8]),
    )
    text = format_bench(Bench(machine="a machine", threads=2, cells=cells))
    assert text.splitlines() == [
        "a machine",
        "a float32 matmul: 172 GFLOP/s",
        "",
        "S/16             batch 1              batch 8",
        "vitral openvino  5.0 (3.3 to 6.7) 3%  200 (200 to 200) 116%",
        "timm             2.5 (2.5 to 2.5) 1%  100 (100 to 100) 58%",
        "left out: huggingface: it is not there",
        "",
        "B/16  batch 8",
        "timm  10.0 (10.0 to 10.0) 6%",
        "left out: huggingface: it is not there",
        "",
        "images/s in the median round (the middle half of the rounds), share of the matmul peak",
    ]


def test_an_engine_that_is_missing_at_a_batch_has_a_dash() -> None:
    cells = (cell("S/16", 1, theirs=[1.0]), cell("S/16", 8, ours=[1.0], theirs=[1.0]))
    line = next(
        line for line in format_bench(Bench(machine="", threads=1, cells=cells)).splitlines() if OURS.name in line
    )
    assert line.split()[2] == "-"
