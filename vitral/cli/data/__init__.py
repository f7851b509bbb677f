"""The verbs of the group "Prepare data"."""
