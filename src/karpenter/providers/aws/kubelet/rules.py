"""What is wrong with a class's kubelet settings, and what its images will not heed (AWS-101 to AWS-107, AWS-130 to AWS-138).

Admission takes any object for ``spec.kubelet``: the API server knows nothing of the kubelet. So the class's controller asks here,
in this order, and puts the answer into ``ValidationSucceeded``. Each answer is a tuple of sentences for the user, empty when all
is well; nothing raises.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta

from karpenter.model import durations, quantity
from karpenter.providers.aws.kubelet import fields
from karpenter.providers.aws.kubelet.expressions import ExpressionError, TypeFacts, fault, variables
from karpenter.providers.aws.kubelet.resolved import (
    RESERVED,
    is_expression,
    resolve_max_pods,
    resolve_reserved,
)
from karpenter.providers.aws.userdata.families import AL2023, BOTTLEROCKET, CUSTOM

_SIGNALS = (
    "memory.available",
    "nodefs.available",
    "nodefs.inodesFree",
    "imagefs.available",
    "imagefs.inodesFree",
    "pid.available",
)
_THRESHOLDS = ("evictionHard", "evictionSoft", "evictionMinimumReclaim")
_GRACE = "evictionSoftGracePeriod"
_RESERVABLE = ("cpu", "memory", "ephemeral-storage", "pid")
_HIGH, _LOW = "imageGCHighThresholdPercent", "imageGCLowThresholdPercent"
_NOT_NEGATIVE = ("podsPerCore", "evictionMaxPodGracePeriod", "maxPods")
_PERCENTAGE = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)%", re.ASCII)
#: What families without a configuration file of their own are told by flags or settings.
_FLAGS = (
    "clusterDNS maxPods podsPerCore systemReserved kubeReserved evictionHard evictionSoft evictionSoftGracePeriod "
    "evictionMaxPodGracePeriod imageGCHighThresholdPercent imageGCLowThresholdPercent cpuCFSQuota"
)
_BY_FLAGS = frozenset(_FLAGS.split())
#: Families that heed every field, or whose owner configures the kubelet himself.
_UNLIMITED = frozenset({AL2023, CUSTOM})


def violations(kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """What no kubelet would take, or what is ours to set (AWS-101). A value of the wrong type is told alone."""
    given = {name: value for name, value in kubelet.items() if value is not None}
    static = {name: value for name, value in given.items() if name != "maxPods" or not isinstance(value, str)}
    misfit = fields.misfit(static)
    return (misfit,) if misfit else tuple(_violations(given))


def unsupported(family: str, kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """Settings the family's images will not apply (AWS-104, AWS-138)."""
    return () if family in _UNLIMITED else tuple(_unsupported(family, kubelet))


def expressions(kubelet: Mapping[str, object]) -> Mapping[str, str]:
    """The expressions among the settings, by path such as ``kubeReserved.cpu`` (AWS-102)."""
    max_pods = kubelet.get("maxPods")
    found = {"maxPods": max_pods} if isinstance(max_pods, str) else {}
    return found | {
        f"{name}.{resource}": value
        for name in RESERVED
        for resource, value in _members(kubelet, name)
        if is_expression(value)
    }


def faults(kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """Expressions that can never be computed (AWS-103)."""
    judged = ((path, fault(text)) for path, text in expressions(kubelet).items())
    return tuple(f"{path}: {why}" for path, why in judged if why)


def failures(kubelet: Mapping[str, object], types: Iterable[TypeFacts]) -> tuple[str, ...]:
    """Expressions that come to nothing usable on some type, each told for the first such type (AWS-107)."""
    found: dict[str, str] = {}
    for facts in types:
        for path, why in _failures_on(kubelet, facts):
            found.setdefault(path, f"{path}: {why} for instance type {facts.instance_type}")
    return tuple(found.values())


def _failures_on(kubelet: Mapping[str, object], facts: TypeFacts) -> Iterator[tuple[str, str]]:
    """Where the pods cannot be computed, what is reckoned from them is judged with the pods of the type."""
    pods = facts.default_pods
    max_pods = kubelet.get("maxPods")
    if isinstance(max_pods, str):
        try:
            pods = resolve_max_pods(max_pods, facts)
        except ExpressionError as error:
            yield "maxPods", str(error)
    elif isinstance(max_pods, int):
        pods = max_pods
    known = variables(facts, pods)
    for path, text in expressions(kubelet).items():
        name, _, resource = path.partition(".")
        if name in RESERVED:
            try:
                resolve_reserved(resource, text, known)
            except ExpressionError as error:
                yield path, str(error)


def _violations(kubelet: Mapping[str, object]) -> Iterator[str]:
    yield from (str(finding) for finding in fields.strangers(kubelet))
    if "registerWithTaints" in kubelet:
        yield "registerWithTaints: may not be set; write taints and startupTaints in the NodePool"
    for name in (*_THRESHOLDS, _GRACE):
        yield from _signals(kubelet, name)
    yield from _one_sided_grace(kubelet)
    for name in RESERVED:
        yield from _reserved(kubelet, name)
    yield from _image_thresholds(kubelet)
    for name in _NOT_NEGATIVE:
        if _integer(kubelet, name, 0) < 0:
            yield f"{name}: {kubelet[name]} is below zero"


def _signals(kubelet: Mapping[str, object], name: str) -> Iterator[str]:
    """AWS-132, AWS-133."""
    for signal, value in _members(kubelet, name):
        if signal not in _SIGNALS:
            yield f"{name}[{signal}]: is not one of {', '.join(_SIGNALS)}"
        elif name == _GRACE and not _is_grace(value):
            yield f"{name}[{signal}]: {value!r} is not a duration such as 2m, 0s or longer"
        elif name != _GRACE and not _is_threshold(value):
            yield f"{name}[{signal}]: {value!r} is neither a percentage from 0% to 100% nor a quantity of 0 or more"


def _is_grace(text: str) -> bool:
    try:
        return durations.parse(text) >= timedelta(0)
    except durations.DurationError:
        return False


def _is_threshold(text: str) -> bool:
    percentage = _PERCENTAGE.fullmatch(text)
    if percentage is not None:
        return float(percentage[1]) <= 100
    try:
        return quantity.milli(text) >= 0
    except quantity.QuantityError:
        return False


def _one_sided_grace(kubelet: Mapping[str, object]) -> Iterator[str]:
    """AWS-134."""
    soft, grace = dict(_members(kubelet, "evictionSoft")), dict(_members(kubelet, _GRACE))
    for signal in sorted(soft.keys() - grace.keys()):
        yield f"evictionSoft[{signal}]: has no {_GRACE}"
    for signal in sorted(grace.keys() - soft.keys()):
        yield f"{_GRACE}[{signal}]: has no evictionSoft"


def _reserved(kubelet: Mapping[str, object], name: str) -> Iterator[str]:
    """AWS-135."""
    for resource, value in _members(kubelet, name):
        if resource not in _RESERVABLE:
            yield f"{name}[{resource}]: is not one of {', '.join(_RESERVABLE)}"
        elif value.startswith("-"):
            yield f"{name}[{resource}]: {value} is below zero"


def _image_thresholds(kubelet: Mapping[str, object]) -> Iterator[str]:
    """AWS-136."""
    for name in (_HIGH, _LOW):
        if name in kubelet and not 0 <= _integer(kubelet, name, 0) <= 100:
            yield f"{name}: {kubelet[name]} is not between 0 and 100"
    both = _HIGH in kubelet and _LOW in kubelet
    if both and _integer(kubelet, _HIGH, 0) <= _integer(kubelet, _LOW, 0):
        yield f"{_HIGH}: must be above {_LOW}"


def _unsupported(family: str, kubelet: Mapping[str, object]) -> Iterator[str]:
    for name in sorted(name for name, value in kubelet.items() if value is not None):
        if name not in _BY_FLAGS or (family == BOTTLEROCKET and name == "podsPerCore"):
            yield f"{name}: {family} images do not apply it"
    servers = kubelet.get("clusterDNS")
    if isinstance(servers, list | tuple) and len(servers) > 1:
        yield f"clusterDNS: {family} images apply one address only, not {len(servers)}"


def _members(kubelet: Mapping[str, object], name: str) -> Iterator[tuple[str, str]]:
    """Entries of a map-valued setting that are texts, by key."""
    value = kubelet.get(name)
    if isinstance(value, Mapping):
        yield from sorted((str(key), item) for key, item in value.items() if isinstance(item, str))


def _integer(kubelet: Mapping[str, object], name: str, otherwise: int) -> int:
    value = kubelet.get(name)
    return value if isinstance(value, int) else otherwise
