"""How a measurement is reported: what, how much, and how that compares with its target."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Figure:
    """One measured value. ``target`` is what it must not exceed, in the same unit."""

    name: str
    value: float
    unit: str
    target: float | None = None
    note: str = ""

    def __str__(self) -> str:
        text = f"{self.name:<58} {self.value:>10.3f} {self.unit:<4}"
        if self.target is not None:
            verdict = "ok" if self.value <= self.target else "MISSED"
            text += f" target {self.target:>8.3f}  ratio {self.value / self.target:5.2f}  {verdict}"
        return f"{text}  {self.note}" if self.note else text
