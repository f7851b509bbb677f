"""Other libraries as oracles: each runs in a separate process, on files alone."""
