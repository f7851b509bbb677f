"""Studies of the paper's appendices, and of later papers."""
