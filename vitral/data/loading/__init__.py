"""From samples to batches: the same ones for any number of workers and processes, and from any step on."""
