"""`python -m benchmarks.busy`: a training step alone and beside busy loops, by threads and how they wait.

Every arm is a process of its own, since OpenMP reads its variables when torch is loaded; arms take turns, so that a
change of the machine's load meets all of them. Prints the median step of each arm in ms, and how many times it grows
beside the loops.
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

ARMS: dict[str, tuple[int, dict[str, str]]] = {
    "2 threads": (2, {}),
    "2 threads, OMP_WAIT_POLICY=PASSIVE": (2, {"OMP_WAIT_POLICY": "PASSIVE"}),
    **{f"2 threads, GOMP_SPINCOUNT={count}": (2, {"GOMP_SPINCOUNT": count}) for count in ("1000", "10000", "50000")},
    "1 thread": (1, {}),
    "1 thread, set after the first step": (-1, {}),
}
SIZES = {"S/16 at 96": ("S/16", 96, 16), "Ti/16 at 64": ("Ti/16", 64, 32)}  # model, image size, batch
WORKER = """
import sys, time
import torch
from vitral import create_model
threads, name, size, batch, steps = int(sys.argv[1]), sys.argv[2], *map(int, sys.argv[3:])
model = create_model(name, image_size=size, num_classes=10)
optimizer = torch.optim.AdamW(model.parameters())
images, labels = torch.rand(batch, 3, size, size), torch.randint(10, (batch,))
def step():
    torch.nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    optimizer.zero_grad()
if threads > 0:
    torch.set_num_threads(threads)
step()
if threads < 0:
    torch.set_num_threads(-threads)
print("ready", flush=True)
for line in sys.stdin:
    started = time.perf_counter()
    for _ in range(steps):
        step()
    print(1000 * (time.perf_counter() - started) / steps, flush=True)
"""
VARIABLES = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "OMP_NUM_THREADS", "MKL_NUM_THREADS"}


class Arm:
    """A process that takes steps when it is asked, and is stopped otherwise."""

    def __init__(self, threads: int, variables: dict[str, str], size: tuple[str, int, int], steps: int) -> None:
        environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
        words = [str(threads), *map(str, size), str(steps)]
        self.process = subprocess.Popen(
            [sys.executable, "-c", WORKER, *words], env=environment, text=True, stdin=-1, stdout=-1
        )
        self.answer()
        self.process.send_signal(signal.SIGSTOP)

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline()

    def time(self) -> float:
        assert self.process.stdin is not None
        self.process.send_signal(signal.SIGCONT)
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        found = float(self.answer())
        self.process.send_signal(signal.SIGSTOP)
        return found


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.busy", description=__doc__)
    parser.add_argument("--size", choices=SIZES, default=next(iter(SIZES)))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=4, help="in a round")
    parser.add_argument("--loops", type=int, default=2)
    asked = parser.parse_args()
    arms = {name: Arm(*arm, SIZES[asked.size], asked.steps) for name, arm in ARMS.items()}
    found: defaultdict[tuple[str, bool], list[float]] = defaultdict(list)
    try:
        for _ in range(asked.rounds):
            for loops in (0, asked.loops):
                with busy_loops(loops):
                    for name, arm in arms.items():
                        found[name, bool(loops)].append(arm.time())
    finally:
        for arm in arms.values():
            arm.process.kill()
    print(f"{asked.size}, ms a step: {'alone':>26} {'beside ' + str(asked.loops):>10} {'times':>6}")
    for name in arms:
        alone, beside = (statistics.median(found[name, busy]) for busy in (False, True))
        print(f"{name:<36} {alone:>10.0f} {beside:>10.0f} {beside / alone:>6.1f}", flush=True)


if __name__ == "__main__":
    main()
