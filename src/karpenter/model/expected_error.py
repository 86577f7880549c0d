"""The base class of errors that are faults of the environment, not bugs of this program."""

from __future__ import annotations


class ExpectedError(Exception):
    """An API server or a cloud failed or refused.

    The runtime logs such an error as one line and tries again; any other exception counts as a panic and is logged with its
    trace (OPS-371). Errors of a client or a provider derive from this class, so the runtime needs to import neither.
    """
