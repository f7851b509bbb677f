"""`python -m vitral` without the working directory on the import path.

Python puts the working directory first on the path of `python -m`, so that a file called `torch.py` or `typing.py`
among the user's files would be imported instead of the real module. The program `vitral` does not have this problem.
"""

import os  # Python has imported both before it looks at the working directory
import sys


def remove_working_directory() -> None:
    """If this is `python -m vitral`, take the working directory off the path.

    Where vitral itself is imported from there, as in a checkout, it goes to the end of the path, for worker processes.
    """
    if not _starts_vitral():
        return
    folder, package = sys.path.pop(0), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.realpath(folder) == os.path.dirname(os.path.realpath(package)):
        sys.path.append(folder)


def _starts_vitral() -> bool:
    """Whether Python is looking for the module of `python -m vitral`; `-m` is replaced when it is found."""
    if sys.argv[:1] != ["-m"] or sys.flags.safe_path:
        return False
    return sys.orig_argv[-len(sys.argv)] in ("vitral", "-mvitral")  # the arguments of the module are the last
