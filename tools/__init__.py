"""Programs for those who work on vitral: they make what is committed."""
