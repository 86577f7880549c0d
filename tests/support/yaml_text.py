"""YAML as the C parser of PyYAML reads it: the same objects in a tenth of the time. Tests read large charts hundreds of times."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml


def document(text: str) -> Any:
    """The only document of a text."""
    return yaml.load(text, yaml.CSafeLoader)


def documents(text: str) -> Iterator[Any]:
    """All documents of a text, empty ones (None) included."""
    yield from yaml.load_all(text, yaml.CSafeLoader)
