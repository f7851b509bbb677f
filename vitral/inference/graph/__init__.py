"""The model shaped for inference."""
