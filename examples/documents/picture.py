"""The graph of nearest neighbours as SVG: documents by their two main axes, lines to the three that are nearest."""

from __future__ import annotations

from html import escape
from typing import Any

from stages import Vector, nearest

WIDTH, HEIGHT, MARGIN = 1200, 800, 90


def draw(nodes: list[dict[str, Any]]) -> str:
    """The picture; the same nodes give the same one."""
    places = {
        node["path"]: place for node, place in zip(nodes, _places([node["vector"] for node in nodes]), strict=True)
    }
    lines: list[str] = []
    for node in nodes:
        for near in nearest(node, nodes):
            (x1, y1), (x2, y2) = places[node["path"]], places[near["path"]]
            lines.append(
                f'<line x1="{x1:.0f}" y1="{y1:.0f}" x2="{x2:.0f}" y2="{y2:.0f}" '
                f'stroke-opacity="{max(0.1, near["similarity"]):.2f}"/>'
            )
    dots = [
        f'<g><title>{escape(node["title"])}</title><circle cx="{x:.0f}" cy="{y:.0f}" r="6"/>'
        f'<text x="{x + 9:.0f}" y="{y + 4:.0f}">{escape(node["path"])}</text></g>'
        for node, (x, y) in ((node, places[node["path"]]) for node in nodes)
    ]
    return "\n".join([
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>',
        f'<g stroke="#4a6fa5" stroke-width="1.5">{"".join(lines)}</g>',
        f'<g fill="#1d3557">{"".join(dots)}</g>',
        "</svg>\n",
    ])  # fmt: skip


def _places(vectors: list[Vector]) -> list[tuple[float, float]]:
    count = len(vectors)
    mean = [sum(numbers) / count for numbers in zip(*vectors, strict=True)]
    centred = [[number - middle for number, middle in zip(vector, mean, strict=True)] for vector in vectors]
    first = _axis(centred, None)
    second = _axis(centred, first)
    return list(zip(_spread([_dot(one, first) for one in centred], WIDTH - 2 * MARGIN, 0.6 * MARGIN),
                    _spread([_dot(one, second) for one in centred], HEIGHT - 2 * MARGIN, MARGIN), strict=True))  # fmt: skip


def _axis(centred: list[Vector], other: Vector | None) -> Vector:
    """The direction of most variance, at right angles to ``other``: power iteration."""
    axis = [1.0 / (place + 1) for place in range(len(centred[0]))]
    for _ in range(100):
        weights = [_dot(one, axis) for one in centred]
        axis = [sum(weight * one[at] for weight, one in zip(weights, centred, strict=True)) for at in range(len(axis))]
        if other is not None:
            shadow = _dot(axis, other)
            axis = [number - shadow * along for number, along in zip(axis, other, strict=True)]
        length = _dot(axis, axis) ** 0.5 or 1.0
        axis = [number / length for number in axis]
    return axis


def _spread(values: list[float], size: float, margin: float) -> list[float]:
    """By rank as much as by value, so that labels do not lie on each other."""
    low, high = min(values), max(values)
    ranks = {value: rank for rank, value in enumerate(sorted(values))}
    scale = (high - low) or 1.0
    return [margin + size * ((value - low) / scale + ranks[value] / max(1, len(values) - 1)) / 2 for value in values]


def _dot(one: Vector, other: Vector) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))
