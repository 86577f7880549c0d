"""Host ports of pods, and when two of them conflict on one node (SCH-415, SCH-416)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from karpenter.api.core import Container, PodSpec


class HostPort(NamedTuple):
    """A host port. ``ip`` is ``0.0.0.0`` if the pod names none."""

    ip: str
    port: int
    protocol: str

    def conflicts_with(self, other: HostPort) -> bool:
        """Whether both cannot be used on one node (SCH-416)."""
        same = self.port == other.port and self.protocol == other.protocol
        return same and (self.ip == other.ip or self.ip in _ANY_IP or other.ip in _ANY_IP)

    def __str__(self) -> str:
        return f"IP: {self.ip}, Port: {self.port}, Proto: {self.protocol}"


_ANY_IP = frozenset({"0.0.0.0", "::"})


def host_ports_of(spec: PodSpec) -> tuple[HostPort, ...]:
    """Host ports of a pod (SCH-415), including those of sidecars (its Beyond); with ``hostNetwork`` all its ports count."""
    # Asked of every pod there is: most state no ports, and a list costs less than a generator.
    stating = [container for container in spec.containers if container.ports]
    stating += [each for each in spec.init_containers if each.ports and each.restart_policy == "Always"]
    return tuple([port for container in stating for port in _ports(container, spec)]) if stating else ()


def _ports(container: Container, spec: PodSpec) -> Iterator[HostPort]:
    for port in container.ports:
        number = port.host_port or (port.container_port if spec.host_network else 0)
        if number:
            yield HostPort(port.host_ip or "0.0.0.0", number, port.protocol or "TCP")
