"""`python -m vitral`, the same as `vitral`."""

from vitral.cli import main

main()
