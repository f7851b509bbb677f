"""Evaluation on images that a model was not trained on: accuracy, calibration, and the quality of its features."""
