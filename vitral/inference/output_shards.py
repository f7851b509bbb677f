"""Shards of a large output: which images are in one, and its file, which is written atomically.

The file has its final name only once it is complete and on disk, whatever ends the process.
"""

import hashlib
import os
import re
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vitral.core.errors import ConfigError
from vitral.core.storage import new_file, os_error_message, wrap_write_errors, write_hint

RERUN = "run it again"
SHARD = re.compile("([0-9]{1,9})/([0-9]{1,9})")


class Shard(NamedTuple):
    """One of several shares of the images, counted from 1.

    A hash of its name decides the share of an image, so that adding or removing others does not move it.
    """

    number: int
    of: int

    def contains(self, name: str) -> bool:
        """Whether the image of that name is in this share; every image is in exactly one."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.number - 1


WHOLE = Shard(1, 1)


def parse_shard(text: str) -> Shard:
    """The shard that a text such as `2/8` names."""
    match = SHARD.fullmatch(text.strip())
    if match and 1 <= int(match[1]) <= int(match[2]):
        return Shard(int(match[1]), int(match[2]))
    hint = "give the number of the shard, from 1, and the number of shards"
    raise ConfigError(
        f"expected one of 1/N to N/N such as 2/8, got {text!r}", code="config.bad_shard", where="--shard", hint=hint
    )


def output_exists(path: Path, option: str) -> bool:
    """Whether the output file exists; raises ConfigError if something else has its name."""
    if os.path.lexists(path) and not path.is_file():
        found = "a folder" if path.is_dir() else "something else"
        raise ConfigError(
            f"expected a file to write, found {found} at {path}",
            code="config.path_exists",
            where=option,
            hint="name a new file",
        )
    return path.is_file()


@contextmanager
def open_output(path: Path, option: str) -> Iterator[BinaryIO]:
    """A file that gets its name at the end of the block; after an error there is no file.

    An OSError of the disk becomes an error that names the file; other errors pass through.
    """
    with ExitStack() as stack:
        try:
            file = stack.enter_context(new_file(path, then=RERUN))
        except OSError as error:
            message = f"expected a file that can be written, and {path} cannot: {os_error_message(error)}"
            hint = f"{write_hint(error)}, or name another file"
            raise ConfigError(message, code="config.not_writable", where=option, hint=hint) from error
        yield file


def report_write_errors(path: Path) -> AbstractContextManager[None]:
    """Turn an OSError in the block into an error that names the output file."""
    return wrap_write_errors(path, then=RERUN)
