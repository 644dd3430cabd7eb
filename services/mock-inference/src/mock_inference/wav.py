"""Facts of a WAV file from its first bytes, by the standard library."""

from __future__ import annotations

import io
import wave
from typing import Final, TypedDict

# a header with its text chunks is smaller; beyond it the file counts as no WAV
HEAD_BYTES: Final = 65_536


class WavFacts(TypedDict):
    """What the header says; the duration is that of the samples that really came."""

    duration_seconds: float
    sample_rate: int
    channels: int
    sample_bits: int


def wav_facts(head: bytes, file_bytes: int) -> WavFacts | None:
    """The facts of a file of ``file_bytes`` that starts with ``head``; None when it is no PCM WAV."""
    source = io.BytesIO(head)
    try:
        with wave.open(source) as header:
            frame_bytes = header.getnchannels() * header.getsampwidth()
            # writers that cannot seek leave a wrong length: never more than what is there
            frames = min(header.getnframes(), (file_bytes - source.tell()) // frame_bytes)
            return {
                "duration_seconds": round(frames / header.getframerate(), 6),
                "sample_rate": header.getframerate(),
                "channels": header.getnchannels(),
                "sample_bits": header.getsampwidth() * 8,
            }
    except (wave.Error, EOFError, ZeroDivisionError, RuntimeError):
        # RuntimeError, without a text, is how the module refuses a chunk that ends outside its file
        return None
