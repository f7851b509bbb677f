"""Training: optimiser, schedule, averaging, precision, the state of a run, the loop."""
