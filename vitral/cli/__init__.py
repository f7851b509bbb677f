"""The command line: one file per verb.

Data goes to stdout, messages to stderr. Importing this package does not import torch.
"""

from vitral.cli import (
    bench,
    check,
    convert,
    demo,
    describe,
    evaluate,
    explain,
    export,
    merge,
    models,
    pack,
    predict,
    sign,
    sweep,
    train,
)
from vitral.cli.terminal.app import app, main

VERBS = (
    bench, check, convert, demo, describe, evaluate, explain, export, merge, models, pack, predict, sign, sweep, train
)  # fmt: skip

__all__ = ["VERBS", "app", "main"]
