"""A model step by step: its shapes, its cost, its equations, and one image on its way through."""
