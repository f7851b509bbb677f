"""The verb bench."""

from typing import Annotated

import typer

from vitral.cli.app import app, progress_bar
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
        int, typer.Option(help="Threads of each engine.", min=1, default_factory=cpu_count, show_default="one a core")
    ],
    models: Annotated[str, typer.Option(metavar="A,B", help="Models such as S/16, or bundles.")] = "Ti/16,S/16,B/16",
    batches: Annotated[str, typer.Option(metavar="N,M", help="Batch sizes.")] = "1,8,32",
    engines: Annotated[str, typer.Option(metavar="A,B", help=ENGINES_HELP)] = "",
    peers: Annotated[bool, typer.Option("--peers", help=PEERS_HELP)] = False,
    rounds: Annotated[int, typer.Option(help="Rounds of each engine; the median is shown.", min=1)] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every round.")] = False,
) -> None:
    """Measure the images a second of every engine on this machine.

    Each engine has its own process, and they take turns. The percentage is the share of the FLOP/s that a float32
    matmul reaches with as many threads. It takes minutes; for a quick look: --models Ti/16 --batches 8.
    """
    from vitral.runs import bench as benching
    from vitral.runs.bench import format_bench

    sizes = [_size(text) for text in batches.split(",")]
    model_names = [_name(text) for text in models.split(",")]
    names = [f"vitral {name.strip()}" for name in engines.split(",")] if engines else []
    compared = [*benching.own_engines(names), *(benching.peer_engines() if peers else ())]
    plan = benching.BenchPlan(model_names, sizes, compared, threads, benching.Duration(rounds))
    result = benching.bench(plan, progress_bar)
    typer.echo(result.to_json() if json else format_bench(result))


def _name(text: str) -> str:
    if not text.strip():
        message = f"expected names such as Ti/16,S/16, got {text!r}"
        raise ConfigError(message, code="config.missing_value", where="--models")
    return text.strip()


def _size(text: str) -> int:
    if not text.strip().isdecimal() or not int(text):
        message = f"expected numbers such as 1,8,32, got {text!r}"
        raise ConfigError(message, code="config.wrong_type", where="--batches")
    return int(text)
