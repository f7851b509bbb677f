"""Parts of a large output: each is there whole or not at all, whatever ends its process.

A part is written as a hidden draft beside it (`.1.jsonl.tmp-9f3c07aa`), brought to the disk and renamed. The writer
holds the kernel's lock on its draft, so a draft that can be locked was left by a process that died, and is removed.
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
    """One of so many shares of the images, counted from 1.

    The name of an image decides its share: whatever is added to a folder or taken from it, no other image moves.
    """

    number: int
    of: int

    def contains(self, name: str) -> bool:
        """Whether the image of that name is in this share; it is in exactly one."""
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=8).digest()
        return int.from_bytes(digest) % self.of == self.number - 1


WHOLE = Shard(1, 1)


def parse_shard(text: str) -> Shard:
    """The share that `2/8` stands for."""
    match = SHARD.fullmatch(text.strip())
    if match and 1 <= int(match[1]) <= int(match[2]):
        return Shard(int(match[1]), int(match[2]))
    hint = "write the number of the share, from 1 on, and how many there are"
    raise ConfigError(
        f"expected one of 1/N to N/N such as 2/8, got {text!r}", code="config.bad_shard", where="--shard", hint=hint
    )


def output_exists(path: Path, option: str) -> bool:
    """Whether a part was made before; what cannot be one is refused in the name of the option."""
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
    """A file to write a part into, which gets its name at the end; after an error there is nothing.

    What the disk refuses is told in the name of the part; whatever else goes wrong meanwhile goes through as it is.
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
