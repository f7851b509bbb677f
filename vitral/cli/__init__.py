"""The command line: one file a verb.

stdout carries data, stderr the talk. Only what every verb needs is imported here; torch waits until work starts.
"""

from vitral.cli import bench, check, convert, demo, describe, evaluate, explain, export, pack, predict, train
from vitral.cli.app import app, main

__all__ = [
    "app",
    "bench",
    "check",
    "convert",
    "demo",
    "describe",
    "evaluate",
    "explain",
    "export",
    "main",
    "pack",
    "predict",
    "train",
]
