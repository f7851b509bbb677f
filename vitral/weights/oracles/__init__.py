"""Other libraries as oracles: each runs in a process of its own, on files alone."""
