"""Resources as series show them (OPS-404), and what pods are limited to, which nothing but series asks for."""

from __future__ import annotations

from functools import lru_cache

from karpenter.api.core import Container, Pod
from karpenter.model import quantity
from karpenter.model import resources as res
from karpenter.model.resources import Resources


@lru_cache(maxsize=1024)
def resource_type(name: str) -> str:
    """A resource's name as a label value: ``ephemeral-storage`` as ``ephemeral_storage``."""
    return name.lower().replace("-", "_")


@lru_cache(maxsize=4096)
def decimal(amount: int) -> str:
    """An amount in thousandths as a number of cores, bytes or pieces."""
    whole, rest = divmod(amount, quantity.MILLI)
    return str(whole) if not rest else str(amount / quantity.MILLI)


def limits(pod: Pod) -> Resources:
    """What a pod may use at most, ``pods: 1`` included, by the rules for requests (SCH-195); empty where that cannot be read.

    Overhead is added to what is limited at all: without a limit there is nothing to add to.
    """
    try:
        total = _over_its_life(pod)
        if pod.spec.resources is not None:
            total.update(res.parse(pod.spec.resources.limits))
        overhead = {name: amount for name, amount in res.parse(pod.spec.overhead).items() if name in total}
    except quantity.QuantityError:
        return {}
    return {**res.add(total, overhead), res.PODS: res.ONE}


def _over_its_life(pod: Pod) -> dict[str, int]:
    sidecars: dict[str, int] = {}
    peaks: list[dict[str, int]] = []
    for container in pod.spec.init_containers:
        together = res.add(sidecars, _limits(container))
        peaks.append(together)
        if container.restart_policy == "Always":
            sidecars = together
    return res.maximum((res.add(sidecars, *[_limits(container) for container in pod.spec.containers]), *peaks))


def _limits(container: Container) -> dict[str, int]:
    return res.parse(container.resources.limits)
