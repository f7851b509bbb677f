"""What `tools/golden.py` asks of a tree: each file gathers the facts of some sections."""
