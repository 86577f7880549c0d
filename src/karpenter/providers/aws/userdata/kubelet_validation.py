"""The fields of ``KubeletConfiguration`` (``kubelet.config.k8s.io/v1beta1``) and their types (AWS-139).

The table answers whether a field exists and whether a kubelet could decode its value. A kubelet refuses to start otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import timedelta
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from karpenter.model import durations, quantity, structural_schema
from karpenter.model.structural_schema import Finding
from karpenter.model.texts import decoding_text
from karpenter.providers.aws.userdata.ami_families import AL2023, BOTTLEROCKET, CUSTOM
from karpenter.providers.aws.userdata.kubelet_settings import (
    RESERVED_FIELDS,
    ExpressionError,
    KubeletTypeFacts,
    expression_fault,
    expression_variables,
    is_expression,
    resolve_max_pods,
    resolve_reserved,
    whole_number,
)

_PART = r"([0-9]+(\.[0-9]*)?|\.[0-9]+)(ns|us|µs|μs|ms|s|m|h)"
_Duration = Annotated[str, Meta(pattern=rf"^[+-]?(({_PART})+|0)$")]
_Int32 = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]
_Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
_Texts = list[str]
_Map = dict[str, str]
_Open = object

#: Type of a leaf, or the fields of an object; a list of objects is a tuple of one.
_Shape = object

_BY_TYPE: Mapping[_Shape, str] = {
    str: """
        apiVersion kind staticPodPath podLogsDir staticPodURL address tlsCertFile tlsPrivateKeyFile tlsMinVersion
        imagePullCredentialsVerificationPolicy healthzBindAddress clusterDomain kubeletCgroups systemCgroups cgroupRoot
        cgroupDriver cpuManagerPolicy memoryManagerPolicy topologyManagerPolicy topologyManagerScope hairpinMode podCIDR
        resolvConf contentType containerLogMaxSize configMapAndSecretChangeDetectionStrategy reservedSystemCPUs
        showHiddenMetricsForVersion systemReservedCgroup kubeReservedCgroup volumePluginDir providerID
        memoryReservationPolicy containerRuntimeEndpoint imageServiceEndpoint
    """,
    bool: """
        enableServer rotateCertificates serverTLSBootstrap enableDebuggingHandlers enableContentionProfiling cgroupsPerQOS
        singleProcessOOMKill runOnce cpuCFSQuota serializeImagePulls mergeDefaultEvictionSettings
        enableControllerAttachDetach protectKernelDefaults makeIPTablesUtilChains failSwapOn kernelMemcgNotification
        enableSystemLogHandler enableSystemLogQuery enableProfilingHandler enableDebugFlagsHandler seccompDefault registerNode
        localStorageCapacityIsolation failCgroupV1
    """,
    _Int32: """
        port readOnlyPort registryPullQPS registryBurst eventRecordQPS eventBurst healthzPort oomScoreAdj
        nodeLeaseDurationSeconds imageGCHighThresholdPercent imageGCLowThresholdPercent maxPods nodeStatusMaxImages kubeAPIQPS
        kubeAPIBurst maxParallelImagePulls evictionMaxPodGracePeriod podsPerCore iptablesMasqueradeBit iptablesDropBit
        containerLogMaxFiles containerLogMaxWorkers
    """,
    _Int64: "podPidsLimit maxOpenFiles",
    float: "memoryThrottlingFactor",
    _Duration: """
        syncFrequency fileCheckFrequency httpCheckFrequency streamingConnectionIdleTimeout nodeStatusUpdateFrequency
        nodeStatusReportFrequency imageMinimumGCAge imageMaximumGCAge volumeStatsAggPeriod cpuManagerReconcilePeriod
        runtimeRequestTimeout cpuCFSQuotaPeriod evictionPressureTransitionPeriod containerLogMonitorInterval
        shutdownGracePeriod shutdownGracePeriodCriticalPods
    """,
    _Map: """
        cpuManagerPolicyOptions topologyManagerPolicyOptions qosReserved evictionHard evictionSoft evictionSoftGracePeriod
        evictionMinimumReclaim systemReserved kubeReserved
    """,
    _Open: "tlsCurvePreferences defaultPodSysctls logging tracing",
}
_LISTS_OF_TEXTS = """
    tlsCipherSuites preloadedImagesVerificationAllowlist clusterDNS enforceNodeAllocatable allowedUnsafeSysctls
"""
_OTHERS: Mapping[str, _Shape] = {
    "staticPodURLHeader": dict[str, list[str]],
    "featureGates": dict[str, bool],
    "authentication": {
        "x509": {"clientCAFile": str},
        "webhook": {"enabled": bool, "cacheTTL": _Duration},
        "anonymous": {"enabled": bool},
    },
    "authorization": {"mode": str, "webhook": {"cacheAuthorizedTTL": _Duration, "cacheUnauthorizedTTL": _Duration}},
    "memorySwap": {"swapBehavior": str},
    "shutdownGracePeriodByPodPriority": ({"priority": _Int32, "shutdownGracePeriodSeconds": _Int64},),
    "crashLoopBackOff": {"maxContainerRestartPeriod": _Duration},
    "reservedMemory": ({"numaNode": _Int32, "limits": dict[str, str | int | float]},),
    "registerWithTaints": ({"key": str, "value": str, "effect": str, "timeAdded": str},),
    "userNamespaces": {"idsPerPod": _Int64},
}
_FIELDS: Mapping[str, _Shape] = {
    **{name: shape for shape, names in _BY_TYPE.items() for name in names.split()},
    **dict.fromkeys(_LISTS_OF_TEXTS.split(), _Texts),
    **_OTHERS,
}


def decoding_error(kubelet: Mapping[str, object]) -> str:
    """The first value no kubelet could decode, with its path; empty if there is none."""
    try:
        msgspec.convert(kubelet, _CONFIGURATION)
    except msgspec.ValidationError as error:
        return _without_null(decoding_text(error))
    return ""


def unknown_fields(kubelet: Mapping[str, object]) -> tuple[Finding, ...]:
    """Fields that do not exist, nested ones included."""
    return tuple(_unknown_fields(_TREE, kubelet))


def _unknown_fields(tree: structural_schema.Schema, kubelet: Mapping[str, object]) -> Iterator[Finding]:
    for finding in structural_schema.unknown_field_findings(tree, dict(kubelet)):
        yield Finding(finding.path, finding.code, finding.message.replace(" would be dropped", ""))


def _without_null(text: str) -> str:
    """The sentence without the null every field may be."""
    return text.replace(" | null", "").replace("`", "").replace("Expected", "expected")


def _type_of(name: str, shape: _Shape) -> object:
    """The type a value is decoded to."""
    if isinstance(shape, tuple):
        return list[_type_of(name, shape[0])]  # type: ignore[misc]
    if not isinstance(shape, Mapping):
        return shape
    members = [(key, _type_of(key, inner) | None, None) for key, inner in shape.items()]  # type: ignore[operator]
    return msgspec.defstruct(re.sub(r"\W", "", name), members)


def _tree_of(shape: _Shape) -> structural_schema.Schema:
    """The names alone, as the schema that unknown fields are looked for with."""
    if isinstance(shape, tuple):
        return {"items": _tree_of(shape[0])}
    if isinstance(shape, Mapping):
        return {"properties": {name: _tree_of(inner) for name, inner in shape.items()}}
    return {}


_CONFIGURATION = cast("type[msgspec.Struct]", _type_of("KubeletConfiguration", _FIELDS))
_TREE = _tree_of(_FIELDS)

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
#: What families without a kubelet configuration file take as flags or settings.
_FLAGS = (
    "clusterDNS maxPods podsPerCore systemReserved kubeReserved evictionHard evictionSoft evictionSoftGracePeriod "
    "evictionMaxPodGracePeriod imageGCHighThresholdPercent imageGCLowThresholdPercent cpuCFSQuota"
)
_BY_FLAGS = frozenset(_FLAGS.split())
#: Families that heed every field, or whose owner configures the kubelet himself.
_UNLIMITED = frozenset({AL2023, CUSTOM})


def kubelet_violations(kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """Settings that no kubelet takes, or that are ours (AWS-101). A value of the wrong type is reported alone."""
    values = {name: value for name, value in kubelet.items() if value is not None}
    static = {name: value for name, value in values.items() if name != "maxPods" or not isinstance(value, str)}
    misfit = decoding_error(static)
    return (misfit,) if misfit else tuple(_kubelet_violations(values))


def unsupported_settings(family: str, kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """Settings the family's images will not apply (AWS-104, AWS-138)."""
    return () if family in _UNLIMITED else tuple(_unsupported_settings(family, kubelet))


def expression_settings(kubelet: Mapping[str, object]) -> Mapping[str, str]:
    """The expressions among the settings, by path such as ``kubeReserved.cpu`` (AWS-102)."""
    max_pods = kubelet.get("maxPods")
    settings = {"maxPods": max_pods} if isinstance(max_pods, str) else {}
    return settings | {
        f"{name}.{resource}": value
        for name in RESERVED_FIELDS
        for resource, value in _members(kubelet, name)
        if is_expression(value)
    }


def expression_faults(kubelet: Mapping[str, object]) -> tuple[str, ...]:
    """Expressions that can never be computed (AWS-103)."""
    judged = ((path, expression_fault(text)) for path, text in expression_settings(kubelet).items())
    return tuple(f"{path}: {why}" for path, why in judged if why)


def expression_failures(kubelet: Mapping[str, object], types: Iterable[KubeletTypeFacts]) -> tuple[str, ...]:
    """Expressions without a usable result on some type, each with the first such type (AWS-107)."""
    failures: dict[str, str] = {}
    for facts in types:
        for path, why in _failures_on_type(kubelet, facts):
            failures.setdefault(path, f"{path}: {why} for instance type {facts.instance_type}")
    return tuple(failures.values())


def _failures_on_type(kubelet: Mapping[str, object], facts: KubeletTypeFacts) -> Iterator[tuple[str, str]]:
    """If ``maxPods`` cannot be computed, the other expressions are evaluated with the default pods of the type."""
    max_pods = kubelet.get("maxPods")
    if isinstance(max_pods, str):
        try:
            max_pods = resolve_max_pods(max_pods, facts)
        except ExpressionError as error:
            max_pods = None
            yield "maxPods", str(error)
    pods = facts.pods(whole_number(max_pods), whole_number(kubelet.get("podsPerCore")) or 0)
    variables = expression_variables(facts, pods)
    for path, text in expression_settings(kubelet).items():
        name, _, resource = path.partition(".")
        if name in RESERVED_FIELDS:
            try:
                resolve_reserved(resource, text, variables)
            except ExpressionError as error:
                yield path, str(error)


def _kubelet_violations(kubelet: Mapping[str, object]) -> Iterator[str]:
    yield from (str(finding) for finding in unknown_fields(kubelet))
    if "registerWithTaints" in kubelet:
        yield "registerWithTaints: may not be set; write taints and startupTaints in the NodePool"
    for name in (*_THRESHOLDS, _GRACE):
        yield from _signals(kubelet, name)
    yield from _one_sided_grace(kubelet)
    for name in RESERVED_FIELDS:
        yield from _reserved(kubelet, name)
    yield from _image_thresholds(kubelet)
    for name in _NOT_NEGATIVE:
        if _integer(kubelet, name, 0) < 0:
            yield f"{name}: {kubelet[name]} is below zero"


def _signals(kubelet: Mapping[str, object], name: str) -> Iterator[str]:
    """Eviction signals that do not exist, and values they cannot have (AWS-132, AWS-133)."""
    for signal, value in _members(kubelet, name):
        if signal not in _SIGNALS:
            yield f"{name}[{signal}]: is not one of {', '.join(_SIGNALS)}"
        elif name == _GRACE and not _is_grace(value):
            yield f"{name}[{signal}]: {value!r} is not a duration such as 2m, 0s or longer"
        elif name != _GRACE and not _is_threshold(value):
            yield f"{name}[{signal}]: {value!r} is neither a percentage from 0% to 100% nor a quantity of 0 or more"


def _is_grace(text: str) -> bool:
    try:
        return durations.parse_duration(text) >= timedelta(0)
    except durations.DurationError:
        return False


def _is_threshold(text: str) -> bool:
    percentage = _PERCENTAGE.fullmatch(text)
    if percentage is not None:
        return float(percentage[1]) <= 100
    try:
        return quantity.parse_milli(text) >= 0
    except quantity.QuantityError:
        return False


def _one_sided_grace(kubelet: Mapping[str, object]) -> Iterator[str]:
    """Soft eviction thresholds without a grace period, and grace periods without a threshold (AWS-134)."""
    soft, grace = dict(_members(kubelet, "evictionSoft")), dict(_members(kubelet, _GRACE))
    for signal in sorted(soft.keys() - grace.keys()):
        yield f"evictionSoft[{signal}]: has no {_GRACE}"
    for signal in sorted(grace.keys() - soft.keys()):
        yield f"{_GRACE}[{signal}]: has no evictionSoft"


def _reserved(kubelet: Mapping[str, object], name: str) -> Iterator[str]:
    """Reserved resources that cannot be reserved or are negative (AWS-135)."""
    for resource, value in _members(kubelet, name):
        if resource not in _RESERVABLE:
            yield f"{name}[{resource}]: is not one of {', '.join(_RESERVABLE)}"
        elif value.startswith("-"):
            yield f"{name}[{resource}]: {value} is below zero"


def _image_thresholds(kubelet: Mapping[str, object]) -> Iterator[str]:
    """Image garbage collection thresholds out of range or in the wrong order (AWS-136)."""
    for name in (_HIGH, _LOW):
        if name in kubelet and not 0 <= _integer(kubelet, name, 0) <= 100:
            yield f"{name}: {kubelet[name]} is not between 0 and 100"
    both = _HIGH in kubelet and _LOW in kubelet
    if both and _integer(kubelet, _HIGH, 0) <= _integer(kubelet, _LOW, 0):
        yield f"{_HIGH}: must be above {_LOW}"


def _unsupported_settings(family: str, kubelet: Mapping[str, object]) -> Iterator[str]:
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
        yield from sorted((str(key), entry) for key, entry in value.items() if isinstance(entry, str))


def _integer(kubelet: Mapping[str, object], name: str, default: int) -> int:
    value = kubelet.get(name)
    return value if isinstance(value, int) else default
