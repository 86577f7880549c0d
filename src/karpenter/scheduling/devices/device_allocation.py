"""The search for devices: one pod's claims on one node, depth first, as kube-scheduler does it (SCH-788, K15-169).

Claims in the pod's order, requests in the claim's, alternatives and devices in theirs; the first solution wins. Devices of one
request are interchangeable, so they are taken in ascending order and no set of them is tried twice. The work is bounded by steps,
not by time, so equal input has equal plans; a pod whose search takes more finds no place there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from karpenter.instancetypes.type_sets import members
from karpenter.scheduling.devices.device_host import DeviceHost
from karpenter.state.device_demands import (
    MAX_DEVICES_PER_CLAIM,
    ClaimedDevices,
    DeviceAlternative,
    DeviceDemand,
    SharedClaim,
)

#: Devices tried for one pod on one node.
MAX_STEPS = 20_000


@dataclass(frozen=True)
class Leftover:
    """What is left of a host: free devices, counters, what is consumed of shared devices; and the claims by name it meets."""

    free: int
    counters: tuple[int, ...] = ()
    consumed: tuple[tuple[tuple[int, str], int], ...] = ()
    shared_claims: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True)
class Allocation:
    """Devices found: for each claim that was not met before, the alternative and the position of each device."""

    leftover: Leftover
    devices: tuple[tuple[tuple[str, int], ...], ...]


def allocate(host: DeviceHost, leftover: Leftover, demand: DeviceDemand) -> Allocation | None:
    """The devices of one pod; None where its claims cannot be met together."""
    claims: list[ClaimedDevices] = []
    met = set(leftover.shared_claims)
    for claim in demand.claims:
        if isinstance(claim, SharedClaim):
            if claim.key not in met:
                met.add(claim.key)
                claims.append(claim.devices)
        elif not claim.extended_resource or claim.extended_resource not in host.native_resources:
            claims.append(claim)
    search = _Search(host, leftover, claims)
    if not search.run():
        return None
    return Allocation(search.leftover(frozenset(met)), tuple(tuple(each) for each in search.taken))


class _Search:
    """One search. What is taken is undone on the way back."""

    def __init__(self, host: DeviceHost, leftover: Leftover, claims: Sequence[ClaimedDevices]) -> None:
        self._host = host
        self._claims = claims
        self._free = leftover.free
        self._counters = list(leftover.counters)
        self._consumed = dict(leftover.consumed)
        self._steps = MAX_STEPS
        #: By claim and constraint, the tokens of the devices taken so far.
        self._tokens: list[list[list[object]]] = [[[] for _ in claim.constraints] for claim in claims]
        self.taken: list[list[tuple[str, int]]] = [[] for _ in claims]

    def run(self) -> bool:
        """Whether all claims can be met."""
        return self._meet_request(0, 0)

    def leftover(self, met: frozenset[tuple[str, str]]) -> Leftover:
        """What a successful search left."""
        return Leftover(self._free, tuple(self._counters), tuple(sorted(self._consumed.items())), met)

    def _meet_request(self, at: int, number: int) -> bool:
        """This request of a claim and all that follow."""
        while at < len(self._claims) and number == len(self._claims[at].requests):
            at, number = at + 1, 0
        if at == len(self._claims):
            return True
        room = MAX_DEVICES_PER_CLAIM - len(self.taken[at])
        for alternative in self._claims[at].requests[number].alternatives:
            self._steps -= 1
            if self._steps < 0:
                return False
            if alternative.takes_all:
                met = self._take_all(at, number, alternative, room)
            else:
                met = alternative.count <= room and self._take_some(at, number, alternative, alternative.count, 0)
            if met:
                return True
        return False

    def _take_all(self, at: int, number: int, alternative: DeviceAlternative, room: int) -> bool:
        """Every device that matches, at least one (K15-145)."""
        devices = self._host.all_of(alternative)
        if not devices or devices.bit_count() > room:
            return False
        taken: list[_Taken] = []
        for device in members(devices):
            one = self._take(at, alternative, device) if self._is_open(at, alternative, device) else None
            if one is None:
                break
            taken.append(one)
        else:
            if self._meet_request(at, number + 1):
                return True
        for one in reversed(taken):
            self._undo(at, one)
        return False

    def _take_some(self, at: int, number: int, alternative: DeviceAlternative, count: int, start: int) -> bool:
        """So many devices from a position on, and all requests that follow."""
        if not count:
            return self._meet_request(at, number + 1)
        for device in self._candidates(at, alternative, start):
            self._steps -= 1
            if self._steps < 0:
                return False
            taken = self._take(at, alternative, device)
            if taken is None:
                continue
            if self._take_some(at, number, alternative, count - 1, device + 1):
                return True
            self._undo(at, taken)
        return False

    def _candidates(self, at: int, alternative: DeviceAlternative, start: int) -> Iterator[int]:
        """Devices that are free for the alternative and agree with those the claim has, from a position on."""
        candidates = self._host.takable(alternative)
        if not alternative.admin_access:
            candidates &= self._free
        for position, constraint in enumerate(self._claims[at].constraints):
            if constraint.covers(alternative):
                _, sets = self._host.tokens(constraint.attribute)
                candidates &= ~sets.get(None, 0)
                for token in self._tokens[at][position]:
                    candidates &= ~sets[token] if constraint.is_distinct else sets[token]
        return members(candidates >> start << start)

    def _is_open(self, at: int, alternative: DeviceAlternative, device: int) -> bool:
        return any(candidate == device for candidate in self._candidates(at, alternative, device))

    def _take(self, at: int, alternative: DeviceAlternative, device: int) -> _Taken | None:
        """Take a candidate; None where its counters or capacity do not suffice."""
        taken = _Taken(device, alternative, {}, False)
        if not alternative.admin_access and not self._consume(taken):
            return None
        for position, constraint in enumerate(self._claims[at].constraints):
            if constraint.covers(alternative):
                self._tokens[at][position].append(self._host.tokens(constraint.attribute)[0][device])
        self.taken[at].append((alternative.name, device))
        return taken

    def _consume(self, taken: _Taken) -> bool:
        """Take what the device has: counters, its capacity where it is shared, else itself."""
        device, host = taken.device, self._host
        if host.shareable >> device & 1:
            before = {
                (device, each.name): self._consumed.get((device, each.name))
                for each in host.devices[device].shared_dimensions
            }
            if not self._share(device, dict(taken.alternative.filter.capacity)):
                return False
            taken.consumed = before
            counted = all(amount is None for amount in before.values())
        else:
            counted = True
        if counted and not self._take_counters(device):
            self._restore(taken.consumed)
            return False
        taken.counted = counted
        if not host.shareable >> device & 1:
            self._free &= ~(1 << device)
        return True

    def _take_counters(self, device: int) -> bool:
        """Counters are taken once for a device, however many claims share it (K15-166)."""
        consumption = self._host.consumption[device]
        if any(amount > self._counters[at] for at, amount in consumption):
            return False
        for at, amount in consumption:
            self._counters[at] -= amount
        return True

    def _share(self, device: int, wanted: Mapping[str, int]) -> bool:
        """Consume a part of a shared device in each of its dimensions (K15-165)."""
        after: dict[tuple[int, str], int] = {}
        for dimension in self._host.devices[device].shared_dimensions:
            amount = dimension.consumed_by(wanted.get(dimension.name))
            key = (device, dimension.name)
            if amount is None or self._consumed.get(key, 0) + amount > dimension.capacity:
                return False
            after[key] = self._consumed.get(key, 0) + amount
        self._consumed.update(after)
        return True

    def _undo(self, at: int, taken: _Taken) -> None:
        self.taken[at].pop()
        for position, constraint in enumerate(self._claims[at].constraints):
            if constraint.covers(taken.alternative):
                self._tokens[at][position].pop()
        if taken.alternative.admin_access:
            return
        self._restore(taken.consumed)
        if taken.counted:
            for counter, amount in self._host.consumption[taken.device]:
                self._counters[counter] += amount
        if not self._host.shareable >> taken.device & 1:
            self._free |= 1 << taken.device

    def _restore(self, consumed: Mapping[tuple[int, str], int | None]) -> None:
        for key, amount in consumed.items():
            if amount is None:
                self._consumed.pop(key, None)
            else:
                self._consumed[key] = amount


@dataclass(slots=True)
class _Taken:
    """A device that was taken, and what undoes that: what was consumed of it before, and whether its counters were taken."""

    device: int
    alternative: DeviceAlternative
    consumed: dict[tuple[int, str], int | None]
    counted: bool
