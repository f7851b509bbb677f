"""A model step by step: its shapes, cost and equations, and one image traced through it."""
