"""Errors that the in-memory API server answers with on request: a test or a script says which calls fail and how often."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.kube.errors import KubeError


@dataclass(slots=True)
class _InjectedFault:
    """An error for the next matching calls."""

    error: KubeError
    verb: str
    plural: str
    name: str
    remaining: int

    def matches(self, verb: str, plural: str, name: str) -> bool:
        return self.verb in ("", verb) and self.plural in ("", plural) and self.name in ("", name)


class InjectedFaults:
    """The errors that still wait for their calls, oldest first."""

    def __init__(self) -> None:
        self._faults: list[_InjectedFault] = []

    def add(self, error: KubeError, *, verb: str, plural: str, name: str, times: int) -> None:
        """Answer the next ``times`` matching calls with ``error``. Empty matches everything."""
        self._faults.append(_InjectedFault(error, verb, plural, name, times))

    def raise_next(self, verb: str, plural: str, name: str) -> None:
        """Raise the error for such a call, if there is one."""
        for fault in self._faults:
            if fault.matches(verb, plural, name):
                fault.remaining -= 1
                if fault.remaining <= 0:
                    self._faults.remove(fault)
                raise fault.error
