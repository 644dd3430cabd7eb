"""A real WAV file: a tone that sweeps up. ``python -m relayq.dev.wav OUT.wav [SECONDS]``."""

from __future__ import annotations

import math
import struct
import sys
import wave
from pathlib import Path
from typing import Final

FRAMES_PER_SECOND: Final = 16_000
FIRST_HERTZ: Final = 220.0
LAST_HERTZ: Final = 880.0
LOUDNESS: Final = 0.4 * 32_767


def write_sweep(path: Path, seconds: float) -> None:
    """Mono, 16 bits, 16 kHz; written second by second."""
    frames = round(seconds * FRAMES_PER_SECOND)
    with wave.open(str(path), "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(FRAMES_PER_SECOND)
        phase = 0.0
        for start in range(0, frames, FRAMES_PER_SECOND):
            samples: list[int] = []
            for frame in range(start, min(start + FRAMES_PER_SECOND, frames)):
                hertz = FIRST_HERTZ + (LAST_HERTZ - FIRST_HERTZ) * frame / frames
                phase += math.tau * hertz / FRAMES_PER_SECOND
                samples.append(round(LOUDNESS * math.sin(phase)))
            out.writeframes(struct.pack(f"<{len(samples)}h", *samples))


def main() -> None:
    """Write one file and say what it is."""
    path, seconds = Path(sys.argv[1]), float(sys.argv[2]) if len(sys.argv) > 2 else 3.0  # noqa: PLR2004  optional
    write_sweep(path, seconds)
    print(f"{path}: {seconds:g} s, {path.stat().st_size} bytes")


if __name__ == "__main__":
    main()
