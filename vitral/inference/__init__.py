"""Fast answers: engines, the predictor, export, quantization."""
