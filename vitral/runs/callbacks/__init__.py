"""Callbacks: the events of a run, and the trackers that record them."""
