"""Texts of conditions, events, log lines and messages: of bounded length, and with nouns that agree with their numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

#: What is wrong with a text whose lists or mappings are thousands of levels deep.
NESTED_TOO_DEEPLY = "it is nested too deeply"

#: Length of a provider's message in conditions and events, with the dots at its end (K15-381).
_MAX_PROVIDER_MESSAGE_LENGTH = 1024


def count_text(count: int, noun: str) -> str:
    """The noun with its number: 1 pod, 2 pods."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def days_text(days: float) -> str:
    """How many days, with three digits where there are not more before the point: 1 day, 0.25 days."""
    number = f"{days:.3g}" if days < 1000 else f"{days:.0f}"
    return f"{number} day" + ("" if number == "1" else "s")


def decoding_text(error: Exception) -> str:
    """An error of the JSON decoder with the place first."""
    return ": ".join(filter(None, decoding_place(error)))


def decoding_place(error: Exception) -> tuple[str, str]:
    """Where an error of the JSON decoder is, without its ``$`` for the whole document, and what is wrong there."""
    text, _, where = str(error).partition(" - at ")
    path = where.strip("`").rpartition("`")[2].removeprefix("$").removeprefix(".")
    return path, f"a key: {text}" if where.startswith("`key` in ") else text


def shorten(text: str, max_length: int) -> str:
    """The text in at most ``max_length`` characters; an ellipsis replaces the rest."""
    return text if len(text) <= max_length else text[: max_length - 1] + "…"


def truncate_message(text: str) -> str:
    """A provider's message, cut the way Karpenter cuts it (OPS-016, K15-381)."""
    if len(text) <= _MAX_PROVIDER_MESSAGE_LENGTH:
        return text
    return text[: _MAX_PROVIDER_MESSAGE_LENGTH - 3] + "..."


def abbreviated(texts: Sequence[str], limit: int = 5, separator: str = ", ") -> str:
    """The first few texts and how many more there are (OPS-383)."""
    omitted = len(texts) - limit
    return separator.join(texts[:limit]) + (f" and {omitted} other(s)" if omitted > 0 else "")


def error_text(error: BaseException) -> str:
    """The text of an error; of joined ones that of each (OPS-384)."""
    return "; ".join(str(single) for single in _leaf_errors(error))


def _leaf_errors(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaf_errors(member)
    else:
        yield error


def why_unreadable(error: OSError | UnicodeDecodeError) -> str:
    """What is said after the name of a file whose content cannot be had, without the words of Python."""
    return "is not a text in UTF-8" if isinstance(error, UnicodeDecodeError) else f"cannot be read ({error.strerror})"
