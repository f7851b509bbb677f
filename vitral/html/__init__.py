"""Shared by all HTML pages: style sheet, charts, text."""
