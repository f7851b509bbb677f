"""Side-by-side measurements against other libraries: ratios, never part of the tests."""
