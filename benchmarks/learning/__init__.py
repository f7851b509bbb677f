"""Accuracy for CPU minutes: vitral's default recipe beside the ViTs of other libraries."""
