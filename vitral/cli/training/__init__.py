"""The verbs of the group "Train"."""
