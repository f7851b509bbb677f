"""Explain models and their predictions: attention, maps of important patches, a walkthrough, pages and figures."""
