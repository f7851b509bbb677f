"""Errors as programs see them: by their code and by the values they name, not by their sentences."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from vitral.core.errors import VitralError


@contextmanager
def raises(code: str, *values: object) -> Iterator[pytest.ExceptionInfo[VitralError]]:
    """Expect an error with this code that names each of the values (a file, a field, a number) somewhere."""
    with pytest.raises(VitralError) as caught:
        yield caught
    assert caught.value.code == code
    missing = [str(value) for value in values if str(value) not in str(caught.value)]
    assert not missing, f"{caught.value} does not name {missing}"
