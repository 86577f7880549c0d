"""Turns the specification of a claim into what an allocation reads, or says why it cannot (K15-144, K15-155 to K15-158).

Beyond K15-158, ``distinctAttribute`` is supported. Texts are Karpenter's. Every error concerns the claim alone: its pods wait,
others go on.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from karpenter.api.resource_claims import (
    ALLOCATION_MODE_ALL,
    ALLOCATION_MODE_EXACT_COUNT,
    DeviceClass,
    DeviceConstraint,
    DeviceRequest,
    DeviceSelector,
    ExactDeviceRequest,
    ResourceClaimSpec,
)
from karpenter.model import device_selectors, quantity
from karpenter.state.device_demands import (
    MAX_DEVICES_PER_CLAIM,
    AttributeConstraint,
    ClaimedDevices,
    DeviceAlternative,
    DeviceFilter,
    RequestedDevices,
)


@dataclass(frozen=True)
class InvalidClaim:
    """The claim cannot be planned for. ``is_transient``: what it lacks may come, such as a device class."""

    error: str
    is_transient: bool = False


class _ClaimError(ValueError):
    def __init__(self, text: str, *, is_transient: bool = False) -> None:
        super().__init__(text)
        self.is_transient = is_transient


def claimed_devices(
    name: str, spec: ResourceClaimSpec, classes: Mapping[str, DeviceClass]
) -> ClaimedDevices | InvalidClaim:
    """What a claim asks for, or why no plan can be made. ``name`` is the claim's, for texts."""
    try:
        requests = tuple(_requested(name, request, classes) for request in spec.devices.requests)
        constraints = tuple(_constraint(name, constraint) for constraint in spec.devices.constraints)
        _check_count(name, requests)
    except _ClaimError as error:
        return InvalidClaim(f'validating claim "{name}": {error}', error.is_transient)
    return ClaimedDevices(requests, constraints)


def extended_resource_devices(resource: str, device_class: DeviceClass, count: int) -> ClaimedDevices | InvalidClaim:
    """The claim that stands for so many of an extended resource."""
    try:
        selectors = tuple(_expressions(f'DeviceClass "{device_class.metadata.name}"', device_class.spec.selectors))
        wanted = DeviceAlternative("request", DeviceFilter(device_class.metadata.name, selectors), count)
        requests = (RequestedDevices("request", (wanted,)),)
        _check_count(resource, requests)
    except _ClaimError as error:
        return InvalidClaim(f'extended resource "{resource}": {error}', error.is_transient)
    return ClaimedDevices(requests, extended_resource=resource)


def _check_count(name: str, requests: Iterable[RequestedDevices]) -> None:
    """Not even the smallest alternatives together may exceed what a claim may have (K15-146)."""
    total = sum(request.min_count for request in requests)
    if total > MAX_DEVICES_PER_CLAIM:
        raise _ClaimError(
            f'claim "{name}" requests {total} total devices, exceeding maximum of {MAX_DEVICES_PER_CLAIM}'
        )


def _requested(claim: str, request: DeviceRequest, classes: Mapping[str, DeviceClass]) -> RequestedDevices:
    place = f'claim "{claim}" request "{request.name}"'
    if request.first_available:
        named = ((f"{request.name}/{each.name}", each) for each in request.first_available)
        return RequestedDevices(request.name, tuple(_alternative(place, name, each, classes) for name, each in named))
    if request.exact is None:
        raise _ClaimError(f"{place}: only Exactly and FirstAvailable requests are supported")
    return RequestedDevices(request.name, (_alternative(place, request.name, request.exact, classes),))


def _alternative(
    place: str, name: str, wanted: ExactDeviceRequest, classes: Mapping[str, DeviceClass]
) -> DeviceAlternative:
    device_class = classes.get(wanted.device_class_name)
    if device_class is None:
        text = f'{place}: DeviceClass "{wanted.device_class_name}" not found'
        raise _ClaimError(text, is_transient=True)
    if wanted.allocation_mode not in ("", ALLOCATION_MODE_EXACT_COUNT, ALLOCATION_MODE_ALL):
        raise _ClaimError(f'{place}: unsupported allocation mode "{wanted.allocation_mode}"')
    own = tuple(_expressions(place, wanted.selectors))
    of_class = f'{place}: DeviceClass "{wanted.device_class_name}"'
    selectors = (*_expressions(of_class, device_class.spec.selectors), *own)
    return DeviceAlternative(
        name,
        DeviceFilter(
            wanted.device_class_name, selectors, wanted.tolerations, tuple(_capacity(place, wanted)), own_selectors=own
        ),
        count=max(1, wanted.count),
        takes_all=wanted.allocation_mode == ALLOCATION_MODE_ALL,
        admin_access=bool(wanted.admin_access),
    )


def _expressions(place: str, selectors: Iterable[DeviceSelector]) -> Iterator[str]:
    for selector in selectors:
        if selector.cel is None:
            raise _ClaimError(f"{place} has unsupported selector type (only CEL is supported)")
        expression = selector.cel.expression
        error = device_selectors.selector_error(expression)
        if error:
            raise _ClaimError(f'{place}: CEL expression "{expression}" failed to compile: {error}')
        yield expression


def _capacity(place: str, wanted: ExactDeviceRequest) -> Iterator[tuple[str, int]]:
    for name, amount in sorted(wanted.capacity.requests.items()) if wanted.capacity is not None else ():
        parsed = parsed_quantity(amount)
        if parsed is None or parsed < 0:
            raise _ClaimError(f'{place}: capacity "{name}" is not a quantity')
        yield name, parsed


@lru_cache(4096)
def parsed_quantity(amount: str | int | float) -> int | None:
    """A quantity in thousandths; None where it is none."""
    try:
        return quantity.parse_milli(amount)
    except ValueError:
        return None


def _constraint(claim: str, constraint: DeviceConstraint) -> AttributeConstraint:
    if constraint.match_attribute:
        return AttributeConstraint(constraint.match_attribute, constraint.requests)
    if constraint.distinct_attribute:
        return AttributeConstraint(constraint.distinct_attribute, constraint.requests, is_distinct=True)
    raise _ClaimError(f'claim "{claim}": unsupported constraint type')
