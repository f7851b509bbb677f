"""Tasks that learn without labels."""
