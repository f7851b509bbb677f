"""Fast answers: engines, the predictor, export, quantisation."""
