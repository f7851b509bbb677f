"""Models that are ready to answer: predictions, features and explanations."""
