"""Shared by all other packages: configs, errors, durable storage, the machine, counter-based randomness."""
