"""The verbs of the group "Use a model"."""
