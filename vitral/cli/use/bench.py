"""`vitral bench`."""

from typing import Annotated

import typer

from vitral.cli.terminal import options
from vitral.cli.terminal.app import parse_numbers, progress_bar, verb
from vitral.cli.terminal.completion import BENCH_ENGINES, MODELS, complete_list
from vitral.cli.terminal.options import option
from vitral.cli.terminal.text import echo
from vitral.core.errors import ConfigError

PEERS_HELP = (
    "Also measure timm, transformers, vit-pytorch, and timm's graph on ONNX Runtime and OpenVINO, where installed; "
    "needs a checkout of vitral, where `make bench` sets up an environment with them."
)
ENGINES_HELP = f"Engines to measure, separated by commas: {', '.join(BENCH_ENGINES)}."
MODELS_HELP = "Models to measure, separated by commas: names such as S/16, runs or bundles."
ROUNDS_HELP = "How often each engine is measured; the median is shown."


@verb("vitral bench --models Ti/16 --batches 8", "vitral bench --models runs/photos --engines eager,openvino")
def bench(
    threads: Annotated[int, option("N", "Threads of each engine.", min=1, **options.PER_CORE)],
    models: Annotated[str, option("A,B", MODELS_HELP, complete=complete_list(MODELS))] = "Ti/16,S/16,B/16",
    batches: Annotated[str, option("N,M", "Batch sizes, separated by commas.")] = "1,8,32",
    engines: Annotated[str, option("A,B", ENGINES_HELP, "all that are installed", complete_list(BENCH_ENGINES))] = "",
    peers: Annotated[bool, typer.Option("--peers", help=PEERS_HELP)] = False,
    rounds: Annotated[int, option("N", ROUNDS_HELP, min=1)] = 5,
    json: Annotated[bool, typer.Option("--json", help="Print JSON, with the time of every round.")] = False,
) -> None:
    """Measure the images per second of each engine on this machine.

    Each engine runs in its own process, in turns. The percentage is the share of the FLOP/s that a float32 matmul
    reaches with as many threads. With the default options it takes minutes.
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
    echo(result.to_json() if json else runner.format_bench(result))
