"""Structured logs: one JSON object per line, with the keys and texts users of Karpenter search for (OPS-380 ff.)."""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from datetime import UTC, datetime
from typing import TextIO

import msgspec
import structlog

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR}


def configure(level: str, stream: TextIO | None = None) -> None:
    """Send all log lines to ``stream`` (standard output by default), from ``level`` (debug, info, error) on."""
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, structlog.processors.add_log_level, _shaped, _as_json],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(stream or sys.stdout),
        cache_logger_on_first_use=False,
    )


def _shaped(_logger: object, _method: str, event: MutableMapping[str, object]) -> MutableMapping[str, object]:
    """Keys in the order of OPS-380: level, time, logger, message, context, error."""
    now = datetime.now(UTC)
    shaped: dict[str, object] = {
        "level": str(event.pop("level")).upper(),
        "time": now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z",
        "logger": "controller",
        "message": event.pop("event"),
    }
    error = event.pop("error", None)
    shaped.update(event)
    if error is not None:
        shaped["error"] = error
    return shaped


def _as_json(_logger: object, _method: str, event: MutableMapping[str, object]) -> str:
    return msgspec.json.encode(event, enc_hook=str).decode()
