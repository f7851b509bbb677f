"""The verbs of the group "Study"."""
