"""`python -m benchmarks [--only TEXT]`: training steps, eager inference and decoding, as ratios to each peer.

Needs the environment of `make bench`. Each of the other benchmarks is a module with its own --help:

  before            this tree against another checkout: training, inference, loading, predict, --help
  inference         every engine against the best peer, cell by cell
  prediction        start to first answer; predict from files
  model_loading     start to first answer of timm's and transformers' files
  training          the loop against the bare step, two processes, start, memory, checkpoints
  learning          accuracy after 2, 5 and 10 CPU minutes, ours and other libraries
  selfsupervised    a step of MAE against supervised training; DINO and MoCo v3 against lightly
  selfsupervision   what ten CPU minutes without labels give, by method, against training from scratch
  ablation          what the parts of the demo's recipe give, at equal CPU time
  token_merging     accuracy against images a second, of merged tokens and of int8
  zoo               every plain ViT of other libraries, opened by ours: right, refused or wrong
  round_trips       every format to every library and back: equal, named in the certificate, or refused
  attack            damaged and hostile files at every door, and killed runs: tried, held, failed
  fuzz              coverage-guided fuzzing of what reads files
  serving           load on the server: clients, overload, slow clients, soak, reload, and other servers
  serving_attack    hostile requests to the server, and what its OpenAPI description allows
  busy              a training step beside busy processes, by threads and how they wait
  photo_folds       few photos from scratch, by a linear probe and by fine-tuning, in five folds
  feature_extraction, explanation, data_doctor, loader_memory, map_faithfulness, transfer
"""

import argparse
import os
import platform
import sys
from collections.abc import Sequence

import torch

from benchmarks import image_decoding, model
from benchmarks.compare import Case, Length, best_of, ratio, run_interleaved, throughput
from vitral.core.machine import cpu_name

SUITES = {"benchmarks.model": model.CASES, "benchmarks.image_decoding": image_decoding.CASES}


def machine() -> str:
    """What the numbers were measured on."""
    threads, python = torch.get_num_threads(), platform.python_version()
    return f"{cpu_name()}, {os.cpu_count()} cores, {threads} threads, torch {torch.__version__}, Python {python}"


def report(case: Case, seconds: dict[str, list[float]]) -> str:
    """Our speed, then how many times that of each engine, with the middle half of the rounds."""
    ours, best = case.engines[0], best_of(seconds, case.rivals)
    lines = [f"{case.name}: {throughput(case, seconds[ours]):.2f} images/s"]
    for engine, theirs in seconds.items():
        if engine != ours:
            found = ratio(seconds[ours], theirs)
            speed = throughput(case, theirs)
            mark = "  best rival" if engine == best else ""
            lines.append(
                f"  {found.median:5.2f} x {engine:<21} ({found.low:.2f} to {found.high:.2f}; {speed:.2f}/s){mark}"
            )
    reached = ratio(seconds[ours], seconds[best]).median
    verdict = "met" if reached >= case.goal else "NOT met"
    return "\n".join([*lines, f"  goal: {case.goal:.2f} x the best rival: {verdict} ({reached:.2f})"])


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--heats", type=int, default=3, help="times that every process is started anew")
    parser.add_argument("--rounds", type=int, default=4, help="turns of each engine in a heat")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases with this in their name")
    parser.add_argument("--beside", action="store_true", help="also ours untuned and peers tuned")
    given = parser.parse_args(words)
    print(machine(), flush=True)
    beside = tuple(model.BESIDE) if given.beside else ()
    for suite, cases in SUITES.items():
        for case in cases:
            if given.only in case.name:
                engines = (*case.engines, *(beside if cases is model.CASES else ()))
                seconds = run_interleaved(
                    suite, case, tuple(dict.fromkeys(engines)), Length(given.heats, given.rounds), say
                )
                print(report(case, seconds), flush=True)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
