"""Checkpoints: what is saved of a run, and how it is written so that nothing is lost."""
