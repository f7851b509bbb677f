"""What all our pages share: the look, charts, text."""
