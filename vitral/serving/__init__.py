"""Serving: an HTTP API for programs, and a page for people."""
