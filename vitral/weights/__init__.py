"""Weights on disk: bundles, checkpoints of other libraries, conversion and adaptation."""
