"""Images inside tar shards, here or afar, with labels or without. Nothing is unpacked, and no list of them is kept."""

from collections.abc import Iterable, Iterator

from vitral.data.sources.files import is_image
from vitral.data.sources.shards.addresses import is_pattern, is_tar, tars
from vitral.data.sources.shards.index import DRAFT, INDEX, parse_index
from vitral.data.sources.shards.places import check_protocol, join, opened, read_whole, sizes
from vitral.data.sources.shards.tar import parts
from vitral.deploy.places import Image, Stretch, Unlisted
from vitral.errors import DataError


def in_tars(paths: Iterable[str]) -> Iterator[Image]:
    """The images inside tars, labelled or not, in the order that they lie in."""
    for path in paths:
        try:
            with opened(path) as file:
                empty = True
                for part in parts(file, path):
                    if is_image(part.name):
                        empty = False
                        yield Image(f"{path}/{part.name}", Stretch(path, part.start, part.length))
            if empty:
                raise DataError("no images in it", code="data.empty", where=path, remedy="remove it or fetch it again")
        except DataError as error:
            yield Image(error.where or path, Unlisted(error))


def in_pack(folder: str) -> Iterator[Image]:
    """The images of a pack by the names that they had before it was packed."""
    if INDEX not in sizes(folder):
        remedy = "run vitral pack again with the same data: it goes on where it stopped"
        raise DataError("a pack that was not finished", code="data.unfinished_pack", where=folder, remedy=remedy)
    for shard in parse_index(read_whole(join(folder, INDEX)), join(folder, INDEX)).shards:
        tar = join(folder, shard.file)
        for name, start, length in zip(shard.names, shard.starts, shard.lengths, strict=True):
            yield Image(f"{folder.rstrip('/')}/{name}", Stretch(tar, start, length))


def afar(address: str) -> Iterator[Image]:
    """The images of tar shards at an address such as `s3://bucket/set/*.tar`, or of a pack or folder of tars there."""
    if address.startswith(("http://", "https://")) and not is_tar(address):
        remedy = "fetch it and give the file; only tar shards (.tar) are read from afar"
        raise DataError(
            "an address, and vitral downloads nothing", code="data.remote_address", where=address, remedy=remedy
        )
    check_protocol(address)
    if is_tar(address) or is_pattern(address):
        return in_tars(tars(address))
    beside = sizes(address)
    if INDEX in beside or DRAFT in beside:
        return in_pack(address)
    found = [join(address, name) for name in beside if is_tar(name)]
    if not found:
        remedy = "give the folder of the shards, or a pattern of them"
        raise DataError("no tar files in it", code="data.empty", where=address, remedy=remedy)
    return in_tars(found)
