"""Tar shards in WebDataset format, local or at any URL that fsspec reads."""
