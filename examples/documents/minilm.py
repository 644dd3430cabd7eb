"""all-MiniLM-L6-v2 in numpy: six layers of BERT, the mean of the tokens, length one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from tokenizers import Tokenizer

Array = np.ndarray[Any, np.dtype[np.float32]]
MOST_TOKENS = 256


class MiniLM:
    """``embed`` gives a vector of 384 numbers; texts that mean the same have a dot product near 1."""

    def __init__(self, directory: Path) -> None:
        config = json.loads((directory / "config.json").read_text("utf-8"))
        self._heads: int = config["num_attention_heads"]
        self._layers: int = config["num_hidden_layers"]
        self._epsilon: float = config["layer_norm_eps"]
        self._weights: dict[str, Array] = load_file(directory / "model.safetensors")
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(MOST_TOKENS)

    def embed(self, text: str) -> Array:
        """The text's place."""
        ids = np.array(self._tokenizer.encode(text).ids)
        w = self._weights
        hidden = w["embeddings.word_embeddings.weight"][ids] + w["embeddings.position_embeddings.weight"][: len(ids)]
        hidden = self._norm(hidden + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(self._layers):
            hidden = self._block(hidden, f"encoder.layer.{layer}")
        mean = hidden.mean(axis=0)
        return mean / np.linalg.norm(mean)

    def _block(self, hidden: Array, name: str) -> Array:
        query, key, value = (
            self._split(self._linear(hidden, f"{name}.attention.self.{part}")) for part in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / np.sqrt(query.shape[-1])
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        context = (weights @ value).transpose(1, 0, 2).reshape(hidden.shape)
        hidden = self._norm(
            hidden + self._linear(context, f"{name}.attention.output.dense"), f"{name}.attention.output.LayerNorm"
        )
        inner = _gelu(self._linear(hidden, f"{name}.intermediate.dense"))
        return self._norm(hidden + self._linear(inner, f"{name}.output.dense"), f"{name}.output.LayerNorm")

    def _split(self, values: Array) -> Array:
        return values.reshape(len(values), self._heads, -1).transpose(1, 0, 2)

    def _linear(self, values: Array, name: str) -> Array:
        return values @ self._weights[f"{name}.weight"].T + self._weights[f"{name}.bias"]

    def _norm(self, values: Array, name: str) -> Array:
        centred = values - values.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + self._epsilon)
        return scaled * self._weights[f"{name}.weight"] + self._weights[f"{name}.bias"]


def _gelu(values: Array) -> Array:
    # erf by Abramowitz and Stegun 7.1.26, error under 2e-7
    x = np.abs(values) / np.sqrt(2)
    t = 1 / (1 + 0.3275911 * x)
    series = t * (0.254829592 + t * (-0.284496736 + t * (1.421413741 + t * (-1.453152027 + t * 1.061405429))))
    return values * 0.5 * (1 + np.sign(values) * (1 - series * np.exp(-(x**2))))
