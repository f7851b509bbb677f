"""The data doctor: find what is wrong with a dataset before training on it."""
