"""The head of an encrypted object: which format, and which key of the ring.

    "RLYQ" | version 1 | length of the key id | key id (ASCII)        6 to 70 bytes

It is not secret, but authenticated: with the object's name it is the associated data of the stream behind it.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from queuecore.errors import BlobCorrupt

MAGIC: Final = b"RLYQ"
VERSION: Final = 1
KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")
_FIXED_BYTES: Final = len(MAGIC) + 2
MAX_HEADER_BYTES: Final = _FIXED_BYTES + 64


class Header(NamedTuple):
    """A header's content; ``KEY_ID`` is the id's pattern."""

    key_id: str

    @property
    def size(self) -> int:
        """Its length in bytes."""
        return _FIXED_BYTES + len(self.key_id)

    def encode(self) -> bytes:
        """The bytes an object starts with."""
        return MAGIC + bytes((VERSION, len(self.key_id))) + self.key_id.encode("ascii")


def parse_header(name: str, head: bytes) -> Header:
    """The header at the beginning of ``head``, the first ``MAX_HEADER_BYTES`` (or all) of the object ``name``.

    Raises:
        BlobCorrupt: the object is plain, cut, or of a version this release does not read.
    """
    if not head.startswith(MAGIC[: len(head)]):
        raise BlobCorrupt(name, "is not encrypted: encryption is configured and plain objects are refused")
    if len(head) < _FIXED_BYTES:
        raise BlobCorrupt(name, "is cut off within its encryption header")
    version, id_bytes = head[len(MAGIC) : _FIXED_BYTES]
    if version != VERSION:
        raise BlobCorrupt(name, f"has encryption format {version}; this release reads format {VERSION}")
    key_id = head[_FIXED_BYTES : _FIXED_BYTES + id_bytes].decode("latin-1")
    if len(key_id) != id_bytes or not KEY_ID.fullmatch(key_id):
        raise BlobCorrupt(name, "has no valid key id in its encryption header")
    return Header(key_id)
