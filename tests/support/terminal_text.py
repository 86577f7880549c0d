"""A stream that looks like a terminal, and what a person reads there."""

from __future__ import annotations

import io
import re

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


class TerminalText(io.StringIO):
    """Text written to a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        """Always."""
        return True

    def plain_lines(self) -> list[str]:
        """The lines without colours."""
        return [_COLOUR.sub("", line).rstrip() for line in self.getvalue().splitlines()]
