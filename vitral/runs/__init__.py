"""The composition root: a recipe becomes parts becomes a run folder."""
