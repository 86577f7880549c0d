"""The fields of ``KubeletConfiguration`` (``kubelet.config.k8s.io/v1beta1``) and their types (AWS-139).

A table, because nobody reads the fields one by one: it answers whether a field exists and whether its value could be decoded by
a kubelet, which refuses to start otherwise.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Annotated, cast

import msgspec
from msgspec import Meta

from karpenter.model import schema
from karpenter.model.schema import Finding

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
    "authorization": {
        "mode": str,
        "webhook": {"cacheAuthorizedTTL": _Duration, "cacheUnauthorizedTTL": _Duration},
    },
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


def misfit(kubelet: Mapping[str, object]) -> str:
    """The first value no kubelet could decode, with its path; empty if there is none."""
    try:
        msgspec.convert(kubelet, _CONFIGURATION)
    except msgspec.ValidationError as error:
        text, _, path = str(error).partition(" - at ")
        where = path.strip("`").removeprefix("$.")
        return f"{where}: {_plain(text)}" if where else _plain(text)
    return ""


def strangers(kubelet: Mapping[str, object]) -> tuple[Finding, ...]:
    """Fields that do not exist, nested ones included."""
    return tuple(_strangers(_TREE, kubelet))


def _strangers(tree: schema.Schema, kubelet: Mapping[str, object]) -> Iterator[Finding]:
    for finding in schema.unknown(tree, dict(kubelet)):
        yield Finding(finding.path, finding.code, finding.message.replace(" would be dropped", ""))


def _plain(text: str) -> str:
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


def _tree_of(shape: _Shape) -> schema.Schema:
    """The names alone, as the schema that unknown fields are looked for with."""
    if isinstance(shape, tuple):
        return {"items": _tree_of(shape[0])}
    if isinstance(shape, Mapping):
        return {"properties": {name: _tree_of(inner) for name, inner in shape.items()}}
    return {}


_CONFIGURATION = cast("type[msgspec.Struct]", _type_of("KubeletConfiguration", _FIELDS))
_TREE = _tree_of(_FIELDS)
