"""The demo's file is a real recording that any player opens."""

from __future__ import annotations

import wave
from pathlib import Path

from relayq.dev.wav import write_sweep


def test_a_sweep_is_a_wave_file_of_the_asked_length(tmp_path: Path) -> None:
    path = tmp_path / "tone.wav"
    write_sweep(path, 2.5)
    with wave.open(str(path)) as found:
        assert (found.getnchannels(), found.getsampwidth(), found.getframerate()) == (1, 2, 16_000)
        assert found.getnframes() == 40_000
        frames = found.readframes(40_000)
    assert len(set(frames)) > 100, "silence would not show that bytes arrived whole"
    assert path.stat().st_size == 44 + 80_000
