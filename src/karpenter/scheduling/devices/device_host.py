"""The devices of one node, or of an instance type, and which of them a request selects.

Devices are bits of one integer, so which of them a request may take is a few ANDs. Nodes and types with equal devices share one
host, therefore 60 types with eight equal GPUs are searched once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from karpenter.api.resource_claims import DeviceTaint, DeviceToleration
from karpenter.model import device_selectors
from karpenter.scheduling.devices.device_pools import HostDevice
from karpenter.state.device_demands import DeviceAlternative, DeviceFilter

#: A set of devices: bit i stands for the i-th of the host.
DeviceSet = int
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True)
class _Matching:
    """The devices a filter selects: those that may be taken, all of them, and an error that Mode All must not pass over."""

    takable: DeviceSet
    selected: DeviceSet
    error: str


class DeviceHost:
    """What a node or type offers. ``counters``: what counters have in all. ``pool_errors`` keep All from being met.

    ``native_resources``: extended resources that the node has without claims.
    """

    def __init__(
        self,
        devices: Sequence[HostDevice],
        counters: Mapping[tuple[str, str, str, str], int],
        pool_errors: Sequence[str] = (),
        native_resources: frozenset[str] = frozenset(),
    ) -> None:
        self.devices = tuple(devices)
        self.pool_errors = tuple(pool_errors)
        self.native_resources = native_resources
        self.counter_names = tuple(sorted(counters))
        self.counter_totals = dict(counters)
        at = {name: position for position, name in enumerate(self.counter_names)}
        #: By device: positions of counters with what it takes of them.
        self.consumption = [tuple((at[name], amount) for name, amount in device.consumes) for device in self.devices]
        self.shareable: DeviceSet = _set(n for n, device in enumerate(self.devices) if device.is_shareable)
        self._matching: dict[DeviceFilter, _Matching] = {}
        self._matching_by_alternative: dict[int, tuple[DeviceAlternative, _Matching]] = {}
        self._tokens: dict[str, tuple[tuple[object, ...], Mapping[object, DeviceSet]]] = {}

    # -- what requests select -----------------------------------------------------------------------------------------------

    def takable(self, alternative: DeviceAlternative) -> DeviceSet:
        """Devices an alternative may take, allocated or not."""
        return self._matched(alternative).takable

    def all_of(self, alternative: DeviceAlternative) -> DeviceSet | None:
        """Every device that matches, for mode All; None where that cannot be said or one of them keeps claims away."""
        matching = self._matched(alternative)
        if self.pool_errors or matching.error or matching.takable != matching.selected:
            return None
        return matching.selected

    def _matched(self, alternative: DeviceAlternative) -> _Matching:
        """Looked up by identity first, because comparing filters takes longer than all the rest."""
        kept = self._matching_by_alternative.get(id(alternative))
        if kept is None:
            matching = self._matching.get(alternative.filter)
            if matching is None:
                matching = self._matching[alternative.filter] = self._match(alternative.filter)
            kept = self._matching_by_alternative[id(alternative)] = (alternative, matching)
        return kept[1]

    def _match(self, device_filter: DeviceFilter) -> _Matching:
        selected = takable = 0
        first_error = ""
        for position, device in enumerate(self.devices):
            matches = True
            for expression in device_filter.selectors:
                result = device_selectors.match(expression, device.facts)
                first_error = first_error or result.error
                matches = result.matches
                if not matches:
                    break
            if matches and self._has_capacity(device, device_filter):
                selected |= 1 << position
                if not _repels(device.taints, device_filter.tolerations):
                    takable |= 1 << position
        return _Matching(takable, selected, first_error)

    def _has_capacity(self, device: HostDevice, device_filter: DeviceFilter) -> bool:
        """Whether the device has what the filter asks, if it is all free."""
        wanted = dict(device_filter.capacity)
        dimensions = {dimension.name: dimension for dimension in device.dimensions}
        if not wanted.keys() <= dimensions.keys():
            return False
        return all(dimensions[name].consumed_by(amount) is not None for name, amount in wanted.items())

    # -- attributes of constraints ----------------------------------------------------------------------------------------

    def tokens(self, attribute: str) -> tuple[tuple[object, ...], Mapping[object, DeviceSet]]:
        """By device what it has for a constraint: its value, or the binding group it is in; and the devices by token.

        Values and groups never agree (K15-160). None: it has neither.
        """
        by_device = self._tokens.get(attribute)
        if by_device is None:
            tokens = tuple(_token(device, attribute) for device in self.devices)
            sets: dict[object, DeviceSet] = {}
            for position, token in enumerate(tokens):
                sets[token] = sets.get(token, 0) | 1 << position
            by_device = self._tokens[attribute] = (tokens, sets)
        return by_device


def _set(positions: Iterable[int]) -> DeviceSet:
    devices = 0
    for position in positions:
        devices |= 1 << position
    return devices


def _token(device: HostDevice, attribute: str) -> object:
    for name, value in device.facts.attributes:
        if name == attribute:
            return (type(value).__name__, value)
    group = next((group for name, group in device.groups if name == attribute), None)
    return None if group is None else ("group", device.pool, group)


def _repels(taints: Sequence[DeviceTaint], tolerations: Sequence[DeviceToleration]) -> bool:
    """Whether a taint keeps the request away; beyond K15-172, as kube-scheduler has it."""
    return any(
        taint.effect in _BLOCKING_EFFECTS and not any(_tolerates(toleration, taint) for toleration in tolerations)
        for taint in taints
    )


def _tolerates(toleration: DeviceToleration, taint: DeviceTaint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    if toleration.operator == "Exists":
        return True
    return toleration.operator in ("", "Equal") and toleration.value == taint.value
