"""Training: how gradients become steps, and how nothing of a run is lost."""
