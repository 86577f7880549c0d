"""Structured logs: one JSON object per line, with the keys and texts users of Karpenter search for (OPS-380 ff.).

A line passes through a list of small steps. What it is about comes from whoever logs it and from the context variables of the
pass it belongs to (OPS-385); here it gets its shape. Of a message that floods the log every hundredth line stays (OPS-382).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import MutableMapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Protocol

import msgspec
import structlog
from structlog.processors import CallsiteParameter, CallsiteParameterAdder
from structlog.typing import Processor

from karpenter.model import durations
from karpenter.model.contextual import context_of, described

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "error": logging.ERROR}
#: How many lines of one text are written within a second before they are thinned, and which of the others stay (OPS-382).
_IN_FULL = 100
_EVERY = 100
#: Texts remembered for thinning before old ones are forgotten.
_MANY_TEXTS = 1000

#: The keys of a pass, in order (OPS-385).
_PASS = ("controller", "controllerGroup", "controllerKind", "namespace", "name", "reconcileID")

Event = MutableMapping[str, object]


class Stream(Protocol):
    """Where lines go."""

    def write(self, text: str, /) -> object:
        """Take a text."""

    def flush(self) -> None:
        """Pass on what was taken."""


def configure(level: str, stream: Stream | None = None, commit: str = "") -> None:
    """Send all log lines to ``stream`` (standard output by default), from ``level`` (debug, info, error) on.

    ``commit`` is the build's, empty where it is not known. Where each line was logged is said from level debug on only.
    """
    where: list[Processor] = []
    if level == "debug":
        where.append(CallsiteParameterAdder([CallsiteParameter.PATHNAME, CallsiteParameter.LINENO]))
    structlog.configure(
        processors=[
            _in_context,
            structlog.processors.add_log_level,
            Thinning(),
            *where,
            _Shape(commit),
            _as_json,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(_LEVELS[level]),
        logger_factory=structlog.WriteLoggerFactory(stream or sys.stdout),  # type: ignore[arg-type]
        cache_logger_on_first_use=False,
    )


def _in_context(_logger: object, _method: str, event: Event) -> Event:
    """What pass the line belongs to, before what the line says."""
    known = structlog.contextvars.get_contextvars()
    return {**{name: known[name] for name in sorted(known, key=_rank)}, **event}


def _rank(name: str) -> tuple[float, str]:
    """Context variables have no order of their own; the object looked at, under its kind, comes before its name."""
    return (_PASS.index(name) if name in _PASS else _PASS.index("namespace") - 0.5, name)


class Thinning:
    """Drops most lines of a text that comes more than a hundred times within a second, by the event loop's clock if there is one.

    Which objects a line is about does not matter, only its level and its message.
    """

    def __init__(self) -> None:
        self._windows: dict[tuple[object, object], tuple[float, int]] = {}

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        """Pass the line on, or raise ``structlog.DropEvent``."""
        now = _now()
        key = (event["level"], event["event"])
        began, count = self._windows.get(key, (now, 0))
        if not now - 1.0 < began <= now:
            began, count = now, 0
        self._windows[key] = began, count + 1
        if len(self._windows) > _MANY_TEXTS:
            self._windows = {known: window for known, window in self._windows.items() if window[0] > now - 1.0}
        if count >= _IN_FULL and (count + 1 - _IN_FULL) % _EVERY:
            raise structlog.DropEvent
        return event


def _now() -> float:
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()


class _Shape:
    """Keys in the order of OPS-380: level, time, logger, caller, message, commit, context, error."""

    def __init__(self, commit: str) -> None:
        self._commit = {"commit": commit} if commit else {}

    def __call__(self, _logger: object, _method: str, event: Event) -> Event:
        error = event.pop("error", None)
        shaped: Event = {"level": str(event.pop("level")).upper(), "time": _stamp(), "logger": "controller"}
        if "pathname" in event:
            shaped["caller"] = _place(Path(str(event.pop("pathname"))), event.pop("lineno"))
        shaped["message"] = event.pop("event")
        shaped.update(self._commit)
        shaped.update((key, _value(value)) for key, value in event.items())
        if isinstance(error, BaseException):
            for key, value in context_of(error).items():
                shaped.setdefault(key, _value(value))
            error = described(error)
        if error is not None:
            shaped["error"] = error
        return shaped


def _stamp() -> str:
    now = datetime.now(UTC)
    return now.strftime("%Y-%m-%dT%H:%M:%S.") + f"{now.microsecond // 1000:03d}Z"


def _place(file: Path, line: object) -> str:
    return f"{file.parent.name}/{file.name}:{line}"


def _value(value: object) -> object:
    return durations.text(value) if isinstance(value, timedelta) else value


def _as_json(_logger: object, _method: str, event: Event) -> str:
    try:
        return msgspec.json.encode(event, enc_hook=str).decode()
    except (TypeError, ValueError, RecursionError):
        # Something in it is no JSON; the line is worth more than its types.
        return msgspec.json.encode({str(key): str(value) for key, value in event.items()}).decode()


def adopt() -> None:
    """Have what libraries (asyncio among them) log as warnings and errors become lines of ours."""
    logging.captureWarnings(True)
    logging.basicConfig(handlers=[_Adopting()], level=logging.WARNING, force=True)


class _Adopting(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info[1] if record.exc_info else None
        about: dict[str, object] = {"source": record.name}
        if fault is not None:
            about["error"] = repr(fault)
        log = structlog.get_logger()
        (log.error if record.levelno >= logging.ERROR else log.info)(record.getMessage(), **about)
