"""The verbs of the group "Explore images"."""
