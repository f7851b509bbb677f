"""The command line: one file per verb, one folder per group of `vitral --help`.

Data goes to stdout, messages to stderr. Importing this package does not import torch.
"""

from vitral.cli.analysis import describe, evaluate, explain, models
from vitral.cli.data import check, pack
from vitral.cli.images import cluster, curate, search
from vitral.cli.study import paper
from vitral.cli.terminal.app import app, main
from vitral.cli.training import demo, selftrain, sweep, train
from vitral.cli.use import bench, convert, export, merge, predict, serve, sign

VERBS = (
    bench, check, cluster, convert, curate, demo, describe, evaluate, explain, export, merge, models, pack, paper,
    predict, search, selftrain, serve, sign, sweep, train,
)  # fmt: skip

__all__ = ["VERBS", "app", "main"]
