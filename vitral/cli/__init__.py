"""The command line: one verb a function, nothing more.

stdout carries data, stderr the talk. Only what every verb needs is imported here; torch waits until work starts.
"""

from vitral.cli import (
    benching,
    converting,
    data,
    evaluating,
    explaining,
    exporting,
    models,
    predicting,
    training,
)  # each adds its verbs
from vitral.cli.program import app, main

__all__ = [
    "app",
    "benching",
    "converting",
    "data",
    "evaluating",
    "explaining",
    "exporting",
    "main",
    "models",
    "predicting",
    "training",
]
