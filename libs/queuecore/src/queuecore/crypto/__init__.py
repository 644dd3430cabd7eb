"""Encryption of objects: pure bytes, no I/O (docs/architecture; the format is in `queuecore.crypto.stream`)."""
