"""Reports of failed writes of simulated instances: in full, and once, if only the operator can fix the cause.

A write that fails is tried again for ever, so most failures deserve no attention. A missing permission, refused credentials
and a kind the server does not have do: each is one line when it first happens, however many instances meet it and however
often, and again only when it comes back after a while without it.
"""

from __future__ import annotations

import traceback
from datetime import datetime, timedelta

import structlog

from karpenter.kube.error_messages import explain_error
from karpenter.kube.errors import KIND_NOT_SERVED, Forbidden, KubeError, NotFound, Unauthorized
from karpenter.model.clock import Clock
from karpenter.providers.contract import ProviderError

#: A cause that has not occurred for this long counts as fixed. Longer than any pause between two tries.
_RESOLVED_AFTER = timedelta(minutes=5)
_log = structlog.get_logger()


class WriteFailureLog:
    """Tells each cause once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last_seen: dict[str, datetime] = {}

    def record(self, name: str, error: Exception) -> None:
        """A write for the instance or pod ``name`` failed and will be tried again."""
        if not isinstance(error, KubeError | ProviderError):
            trace = "".join(traceback.format_exception(error))
            _log.error("simulated instance failed", name=name, error=repr(error), stacktrace=trace)
            return
        configuration_error = _configuration_error(error)
        if configuration_error is not None and self._is_new(
            cause := explain_error(configuration_error, "the API server")
        ):
            _log.error("simulated instances cannot do their work", name=name, error=cause)
        else:
            _log.debug("simulated instance will try again", name=name, error=str(error))

    def _is_new(self, cause: str) -> bool:
        now = self._clock.now()
        last_seen = self._last_seen.get(cause)
        self._last_seen[cause] = now
        return last_seen is None or now - last_seen > _RESOLVED_AFTER


def _configuration_error(error: Exception) -> KubeError | None:
    """The error if the operator has to fix it, else None. The provider's errors carry the API server's inside."""
    cause = error.__cause__ if isinstance(error, ProviderError) else error
    if isinstance(cause, Forbidden | Unauthorized):
        return cause
    return cause if isinstance(cause, NotFound) and cause.reason == KIND_NOT_SERVED else None
