"""The report of a run: one page that says what a colleague would ask."""
