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
    train,
)
from vitral.cli.app import app, main

VERBS = (bench, check, convert, demo, describe, evaluate, explain, export, merge, models, pack, predict, sign, train)

__all__ = ["VERBS", "app", "main"]
