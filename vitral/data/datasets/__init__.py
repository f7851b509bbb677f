"""Where images come from, one file for each kind of source, all giving the same `Samples`."""
