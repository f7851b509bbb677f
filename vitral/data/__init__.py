"""Files to batches: every pixel of training, evaluation, prediction and serving comes through here."""

from vitral.data.decoder.decode import decode, read
from vitral.data.decoder.header import Decoding
from vitral.data.samples import SPLITS, Item, Samples, Split
from vitral.data.sources.pack import pack
from vitral.data.sources.source import open_data
from vitral.data.sources.split import Stratified, read_split, write_split

__all__ = [
    "SPLITS",
    "Decoding",
    "Item",
    "Samples",
    "Split",
    "Stratified",
    "decode",
    "open_data",
    "pack",
    "read",
    "read_split",
    "write_split",
]
