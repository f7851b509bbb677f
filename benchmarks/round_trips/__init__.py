"""Round trips of weights between all formats."""
