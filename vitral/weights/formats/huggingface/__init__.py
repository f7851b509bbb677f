"""Hugging Face's transformers: a file for each family of models, and what they share."""
