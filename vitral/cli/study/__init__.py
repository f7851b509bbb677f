"""Verbs that study the paper."""
