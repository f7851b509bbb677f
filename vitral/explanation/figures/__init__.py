"""Figures of an explanation, drawn with matplotlib."""
