"""Errors that carry key/value context: fields of their own in a log line, and a suffix of their text (OPS-384)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


class ContextualError(Exception):
    """An error with context: its text is ``message (a=1, b=2)``, keys in order."""

    def __init__(self, message: str, /, **context: object) -> None:
        super().__init__(message)
        self.context: Mapping[str, object] = context

    def __str__(self) -> str:
        message = super().__str__()
        pairs = ", ".join(f"{key}={value}" for key, value in sorted(self.context.items()))
        return f"{message} ({pairs})" if pairs else message


def error_text(error: BaseException) -> str:
    """The text of an error; of joined ones that of each."""
    return "; ".join(str(single) for single in _leaf_errors(error))


def context_of(error: BaseException) -> dict[str, object]:
    """The context of an error, of joined ones that of all; the first to say something about a key is heard."""
    context: dict[str, object] = {}
    for single in _leaf_errors(error):
        if isinstance(single, ContextualError):
            for key, value in single.context.items():
                context.setdefault(key, value)
    return context


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        members: tuple[Any, ...] = error.exceptions
        for member in members:
            yield from _leaf_errors(member)
    else:
        yield error
