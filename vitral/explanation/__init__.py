"""What a model is and what it sees, made visible."""
