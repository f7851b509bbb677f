"""Checkpoints: the saved state of a run, written so that a crash at any time loses nothing."""
