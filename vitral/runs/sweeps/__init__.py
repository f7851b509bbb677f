"""Sweeps: a search over settings whose trials are ordinary runs."""
