"""Experiments: the claims of the paper, each a small file over ordinary runs."""
