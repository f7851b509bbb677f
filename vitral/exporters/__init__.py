"""Export: a model as files that other software runs, verified against the model."""
