"""Load on a real server: `python -m benchmarks.serving`."""
