"""Named recipes, each a lab note: how to run it, what it takes, what it reaches."""
