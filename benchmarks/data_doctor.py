"""`python -m benchmarks.data_doctor [FILES]`: how long `vitral check` takes for 100,000 small files."""

import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.__main__ import machine
from benchmarks.photos import jpeg


def main(files: int = 100_000) -> None:
    with TemporaryDirectory() as root:
        # Pictures of their own: thousands of copies would be thousands of findings.
        for number in range(files):
            path = Path(root) / ("val" if number // 20 % 5 == 0 else "train") / f"class {number % 20}" / f"{number}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(jpeg(64, 64, number))
            if number % 1000 == 999:
                print(f"\rwriting: {number + 1} of {files}", end="", file=sys.stderr, flush=True)
        started = time.perf_counter()
        run = subprocess.run(
            [sys.executable, "-m", "vitral", "check", root], stdout=subprocess.PIPE, text=True, check=False
        )
        seconds = time.perf_counter() - started
    print(run.stdout)
    print(machine())
    print(f"vitral check of {files:,} JPEG files of 64x64: {seconds:.1f} s, exit code {run.returncode}")


if __name__ == "__main__":
    main(*(int(word) for word in sys.argv[1:]))
