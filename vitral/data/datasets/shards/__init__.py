"""Tar files in the form of WebDataset, on this machine or at any address that fsspec knows."""
