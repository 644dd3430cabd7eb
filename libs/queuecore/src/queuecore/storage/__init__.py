"""Where inputs and results lie: a directory or an S3 bucket, encrypted when keys are set."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Final
from urllib.parse import SplitResult, unquote, urlsplit

from queuecore.blobs import BlobStore
from queuecore.errors import ConfigurationError
from queuecore.settings import CommonSettings

__all__ = ["open_store"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_PREFIX: Final = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._=-]*(/[A-Za-z0-9_-][A-Za-z0-9._=-]*)*")


async def open_store(common: CommonSettings) -> BlobStore:
    """The store of ``BLOBS_URL``. Nothing is sent to an S3 server yet; the first call, or ``connect``, does that.

    Raises:
        ConfigurationError: names the variable and the rule.
    """
    store = await _plain_store(common)
    if not (common.encryption_keys or common.encryption_keys_file):
        return store
    # imported only when keys are set: a relay without them starts sooner
    from queuecore.crypto.keyring import KeyRing  # noqa: PLC0415
    from queuecore.storage.encrypted import EncryptedStore  # noqa: PLC0415

    text, source = await _key_text(common)
    return EncryptedStore(store, KeyRing.parse(text, source))


async def _plain_store(common: CommonSettings) -> BlobStore:
    url = urlsplit(common.blobs_url)
    if url.query or url.fragment:
        raise ConfigurationError("BLOBS_URL: no ? or # in it; s3://bucket/prefix or file:///dir")
    if url.scheme == "file":
        return await _directory(url)
    if url.scheme == "s3":
        return _bucket(url, common)
    raise ConfigurationError("BLOBS_URL: required; s3://bucket/prefix or file:///dir")


async def _directory(url: SplitResult) -> BlobStore:
    from queuecore.storage.directory import DirectoryStore  # noqa: PLC0415  a process needs one of the two stores

    path = Path(unquote(url.path))
    if url.netloc not in {"", "localhost"} or not path.is_absolute() or "\0" in url.path or path == Path("/"):
        raise ConfigurationError("BLOBS_URL: file:/// and an absolute directory, such as file:///var/lib/relayq")
    try:
        await asyncio.to_thread(path.mkdir, mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"BLOBS_URL: {path} cannot be made: {error.strerror}") from error
    return DirectoryStore(path)


def _bucket(url: SplitResult, common: CommonSettings) -> BlobStore:
    from queuecore.storage.s3 import S3Connection, S3Store  # noqa: PLC0415  as above
    from queuecore.storage.s3_target import S3Target  # noqa: PLC0415

    prefix = url.path.strip("/")
    if not _BUCKET.fullmatch(url.netloc):
        raise ConfigurationError("BLOBS_URL: the bucket's name has 3 to 63 characters of a-z 0-9 . -")
    if prefix and not _PREFIX.fullmatch(prefix):
        raise ConfigurationError("BLOBS_URL: the prefix has parts of A-Z a-z 0-9 . _ = - between single slashes")
    endpoint = common.s3_endpoint_url
    if endpoint and (urlsplit(endpoint).scheme not in {"http", "https"} or not urlsplit(endpoint).hostname):
        raise ConfigurationError("S3_ENDPOINT_URL: http://host:port or https://host:port")
    target = S3Target(url.netloc, endpoint, common.s3_addressing_style, common.s3_checksums)
    return S3Store(S3Connection(target), prefix)


async def _key_text(common: CommonSettings) -> tuple[str, str]:
    """The keys' text and the variable that errors about it name."""
    if common.encryption_keys:
        return common.encryption_keys.reveal(), "ENCRYPTION_KEYS"
    path = Path(common.encryption_keys_file)
    try:
        return await asyncio.to_thread(path.read_text, "utf-8"), "ENCRYPTION_KEYS_FILE"
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigurationError(f"ENCRYPTION_KEYS_FILE: {path} cannot be read: {reason}") from error
