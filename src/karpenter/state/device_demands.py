"""What pods ask of devices, as frozen data: claims reduced to what an allocation reads (SCH-788).

Claims of different pods that ask the same are equal values, so a thousand pods of one template have one `DeviceDemand`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from karpenter.api.resource_claims import DeviceToleration

#: Devices a claim may have at most (K15-146).
MAX_DEVICES_PER_CLAIM = 32


@dataclass(frozen=True)
class DeviceFilter:
    """Which devices an alternative of a request may take, and how much of a shared one: amounts in thousandths by dimension.

    ``selectors`` are those of the class and of the request; a device must meet all of them.
    """

    device_class: str
    selectors: tuple[str, ...] = ()
    tolerations: tuple[DeviceToleration, ...] = ()
    capacity: tuple[tuple[str, int], ...] = ()
    own_selectors: tuple[str, ...] = ()

    @cached_property
    def _hash(self) -> int:
        return hash((self.device_class, self.selectors, self.tolerations, self.capacity))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class DeviceAlternative:
    """One way to meet a request: ``count`` devices, or every one that matches (``takes_all``).

    ``name``: ``<request>``, or ``<request>/<sub-request>`` (K15-142).

    ``admin_access``: the devices may be in use, and stay free for others.
    """

    name: str
    filter: DeviceFilter
    count: int = 1
    takes_all: bool = False
    admin_access: bool = False


@dataclass(frozen=True)
class RequestedDevices:
    """A request of a claim: the first of its alternatives that leads to a solution counts (K15-141)."""

    name: str
    alternatives: tuple[DeviceAlternative, ...]

    @property
    def min_count(self) -> int:
        """The fewest devices it may come to; All counts as one."""
        return min(1 if each.takes_all else each.count for each in self.alternatives)


@dataclass(frozen=True)
class AttributeConstraint:
    """The devices of these requests (all, if empty) must agree in an attribute, a qualified name (K15-143, K15-159).

    ``is_distinct``: no two of them may agree.
    """

    attribute: str
    requests: tuple[str, ...] = ()
    is_distinct: bool = False

    def covers(self, alternative: DeviceAlternative) -> bool:
        """Whether the alternative's devices must agree: it is named itself, or its request is."""
        names = (alternative.name, alternative.name.partition("/")[0])
        return not self.requests or any(name in self.requests for name in names)


@dataclass(frozen=True)
class ClaimedDevices:
    """What one claim asks for. ``extended_resource``: the claim stands for requests of that resource, where a node lacks it."""

    requests: tuple[RequestedDevices, ...]
    constraints: tuple[AttributeConstraint, ...] = ()
    extended_resource: str = ""

    @cached_property
    def _hash(self) -> int:
        return hash((self.requests, self.constraints, self.extended_resource))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True)
class SharedClaim:
    """A claim by name that is not allocated yet: its pods must run where its devices are. ``key``: namespace and name."""

    key: tuple[str, str]
    devices: ClaimedDevices


@dataclass(frozen=True, eq=False)
class DeviceDemand:
    """What one pod asks: claims of its own, and claims by name, in the order of the pod's claims.

    Compared by identity: `ClusterDevices.resolve` gives one object for equal ones.
    """

    claims: tuple[ClaimedDevices | SharedClaim, ...]

    @cached_property
    def shared(self) -> tuple[SharedClaim, ...]:
        """The claims by name."""
        return tuple(claim for claim in self.claims if isinstance(claim, SharedClaim))

    @cached_property
    def own(self) -> tuple[ClaimedDevices, ...]:
        """The claims of the pod alone."""
        return tuple(claim for claim in self.claims if isinstance(claim, ClaimedDevices))

    @cached_property
    def all_devices(self) -> tuple[ClaimedDevices, ...]:
        """What every claim asks for."""
        return tuple(claim.devices if isinstance(claim, SharedClaim) else claim for claim in self.claims)
