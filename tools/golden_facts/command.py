"""The command line of the tree that is asked, called in this process."""

import io
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module

from tools.golden_facts.names import words_here


def output_of(words: Sequence[str]) -> tuple[int, str]:
    """The exit code and the standard output of a command line in old names."""
    main = import_module("vitral.cli").main
    kept, given = io.BytesIO(), sys.argv
    stream = io.TextIOWrapper(kept, encoding="utf-8", write_through=True)  # takes bytes too, as a pipe does
    sys.argv = ["vitral", *words_here(words)]
    try:
        with redirect_stdout(stream):
            main()
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.argv = given
    return code, kept.getvalue().decode()
