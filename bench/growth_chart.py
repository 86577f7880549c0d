"""The chart of `make bench growth`: how many times as long a decision takes when one thing is so many times as large."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from math import log

#: Sizes and the CPU seconds of a decision on each.
Series = Sequence[tuple[float, float]]

_WIDTH, _HEIGHT = 760, 420
_LEFT, _TOP, _RIGHT, _BOTTOM = 60, 40, 540, 370
#: Both axes go from 1 to so many times the smallest size, and from a half to as many times its seconds.
_LARGEST, _LEAST = 8.0, 0.5
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")


def growth_chart(series: Mapping[str, Series], exponents: Mapping[str, float]) -> str:
    """An SVG with both axes on log scales. A line as steep as the dashed one is proportional; flatter is better."""
    parts = [*_frame(), *(part for at, name in enumerate(series) for part in _line(at, name, series, exponents[name]))]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" font-family="sans-serif" font-size="12">'
    return "\n".join([head, '<rect width="100%" height="100%" fill="#ffffff"/>', *parts, "</svg>", ""])


def _frame() -> Iterator[str]:
    yield f'<text x="{_LEFT}" y="22" font-size="14">CPU time of a decision, in times of that on the smallest size</text>'
    for times in (1, 2, 4, 8):
        x, y = _x(times), _y(times)
        yield f'<path d="M{x:.0f} {_TOP}V{_BOTTOM}M{_LEFT} {y:.0f}H{_RIGHT}" stroke="#dddddd"/>'
        yield f'<text x="{x:.0f}" y="{_BOTTOM + 18}" text-anchor="middle">{times}</text>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4:.0f}" text-anchor="end">{times}</text>'
    middle = (_LEFT + _RIGHT) / 2
    yield f'<text x="{middle:.0f}" y="{_BOTTOM + 38}" text-anchor="middle">size, in times of the smallest</text>'
    ends = f"M{_x(1):.0f} {_y(1):.0f}L{_x(_LARGEST):.0f} {_y(_LARGEST):.0f}"
    yield f'<path d="{ends}" stroke="#888888" stroke-dasharray="5 4"/>'


def _line(at: int, name: str, series: Mapping[str, Series], exponent: float) -> Iterator[str]:
    size, seconds = series[name][0]
    color = _COLORS[at % len(_COLORS)]
    points = " ".join(f"{_x(own / size):.1f},{_y(taken / seconds):.1f}" for own, taken in series[name])
    yield f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="2"/>'
    y = _TOP + 16 + 24 * at
    yield f'<path d="M{_RIGHT + 16} {y - 4}h18" stroke="{color}" stroke-width="2"/>'
    yield f'<text x="{_RIGHT + 40}" y="{y}">{escape(name)}: {exponent:.2f}</text>'


def _x(times: float) -> float:
    return _LEFT + (_RIGHT - _LEFT) * log(times) / log(_LARGEST)


def _y(times: float) -> float:
    share = log(max(times, _LEAST) / _LEAST) / log(_LARGEST / _LEAST)
    return _BOTTOM - (_BOTTOM - _TOP) * share
