"""Attacks on every door: damaged artefacts, damaged and hostile files, special files, kills. See `__main__.py`."""
