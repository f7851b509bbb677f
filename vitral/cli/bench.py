"""The verb bench."""

from typing import Annotated

import typer

from vitral.cli.app import app
from vitral.cli.options import progress_bar
from vitral.core.errors import ConfigError
from vitral.core.machine import cpu_count

PEERS_HELP = (
    "Also timm, transformers and vit-pytorch, and timm's graph on ONNX Runtime and OpenVINO, where they are installed; "
    "needs a checkout of vitral, in which `make bench` sets up an environment with them."
)
ENGINES_HELP = (
    "Some of eager, compiled, onnxruntime, openvino, onnxruntime int8, openvino int8; by itself all that are installed."
)


@app.command()
def bench(
    threads: Annotated[
        int, typer.Option(help="Of each engine.", min=1, default_factory=cpu_count, show_default="one a core")
    ],
    models: Annotated[str, typer.Option(metavar="A,B", help="Names such as S/16, or bundles.")] = "Ti/16,S/16,B/16",
    batches: Annotated[str, typer.Option(metavar="N,M", help="Images at a time.")] = "1,8,32",
    engines: Annotated[str, typer.Option(metavar="A,B", help=ENGINES_HELP)] = "",
    peers: Annotated[bool, typer.Option("--peers", help=PEERS_HELP)] = False,
    rounds: Annotated[int, typer.Option(help="Turns of each engine; the median counts.", min=1)] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with every round.")] = False,
) -> None:
    """Measure how many images a second this machine answers, with every engine.

    One process an engine, and they take turns. The share is that of a float32 matmul on as many threads, by what a
    plain model computes. It takes minutes: --models Ti/16 --batches 8 is a quick look.
    """
    from vitral.runs.bench import bench as benching
    from vitral.runs.bench.bench import format_bench

    sizes = [_size(text) for text in batches.split(",")]
    names = [_name(text) for text in models.split(",")]
    wanted = [f"vitral {name.strip()}" for name in engines.split(",")] if engines else []
    contestants = [*benching.own_engines(wanted), *(benching.peer_engines() if peers else ())]
    found = benching.bench(benching.BenchPlan(names, sizes, contestants, threads, benching.Duration(rounds)), progress_bar)
    typer.echo(found.to_json() if json else format_bench(found))


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
