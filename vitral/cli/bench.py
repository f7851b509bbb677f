"""`vitral bench`."""

from typing import Annotated

import typer

from vitral.cli.app import app, parse_numbers, progress_bar
from vitral.core.errors import ConfigError
from vitral.core.machine import cpu_count

PEERS_HELP = (
    "Also measure timm, transformers, vit-pytorch, and timm's graph on ONNX Runtime and OpenVINO, where installed; "
    "needs a checkout of vitral, where `make bench` sets up an environment with them."
)
ENGINES_HELP = (
    "Some of eager, compiled, onnxruntime, openvino, onnxruntime int8, openvino int8; default: all that are installed."
)


@app.command()
def bench(
    threads: Annotated[
        int, typer.Option(help="Threads of each engine.", min=1, default_factory=cpu_count, show_default="one per core")
    ],
    models: Annotated[str, typer.Option(metavar="A,B", help="Models such as S/16, or bundles.")] = "Ti/16,S/16,B/16",
    batches: Annotated[str, typer.Option(metavar="N,M", help="Batch sizes.")] = "1,8,32",
    engines: Annotated[str, typer.Option(metavar="A,B", help=ENGINES_HELP)] = "",
    peers: Annotated[bool, typer.Option("--peers", help=PEERS_HELP)] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each engine; the median is shown.", min=1)] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every round.")] = False,
) -> None:
    """Measure the images per second of every engine on this machine.

    Each engine has its own process, and they take turns. The percentage is the share of the FLOP/s that a float32
    matmul reaches with as many threads. It takes minutes; for a quick look: --models Ti/16 --batches 8.
    """
    from vitral.runs import bench as runner

    sizes = parse_numbers(batches, "--batches", least=1)
    model_names = [name.strip() for name in models.split(",")]
    if not all(model_names):
        message = f"expected names such as Ti/16,S/16, got '' in {models!r}"
        raise ConfigError(message, code="config.missing_value", where="--models")
    names = [f"vitral {name.strip()}" for name in engines.split(",")] if engines else []
    compared = [*runner.own_engines(names), *(runner.peer_engines() if peers else ())]
    plan = runner.BenchPlan(model_names, sizes, compared, threads, runner.Duration(rounds))
    result = runner.bench(plan, progress_bar)
    typer.echo(result.to_json() if json else runner.format_bench(result))
