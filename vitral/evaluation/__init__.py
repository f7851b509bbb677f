"""Evaluation: what a model answers on images it has not learned from, and how good and how honest the answers are."""
