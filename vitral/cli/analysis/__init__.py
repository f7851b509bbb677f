"""The verbs of the group "Look at a model"."""
