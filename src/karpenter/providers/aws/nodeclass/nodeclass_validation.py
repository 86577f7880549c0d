"""Whether a class can be launched from: ValidationSucceeded (AWS-100 to AWS-110, AWS-126).

The steps run in a fixed order and the first that objects decides. What the class says is judged by functions; only the first and
the last step ask AWS, the last by dry runs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from karpenter.api.ec2_node_class import EC2NodeClass, EC2NodeClassSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.instancetypes.instance_type import InstanceType
from karpenter.kube.errors import KubeError
from karpenter.model import conditions
from karpenter.model.ec2_volume_size import VolumeSizeError, volume_size_gib
from karpenter.providers.aws import aws_labels
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.instancetype.device_templates import NO_SHARING, GpuSharingError, parse_gpu_sharing
from karpenter.providers.aws.nodeclass.nodeclass_dry_runs import (
    DryRunResult,
    LaunchDryRuns,
    TypeFits,
    dry_run_candidates,
    node_pools_of,
    restricted_tags,
)
from karpenter.providers.aws.nodeclass.nodeclass_hash import HASH_ANNOTATION, HASH_VERSION_ANNOTATION
from karpenter.providers.aws.nodeclass.nodeclass_subreconcilers import (
    AMIS_READY,
    INSTANCE_PROFILE_READY,
    MINUTE,
    SECURITY_GROUPS_READY,
    SUBNETS_READY,
    VALIDATION_SUCCEEDED,
    SubreconcileResult,
    condition_false,
    condition_true,
    condition_unknown,
)
from karpenter.providers.aws.userdata import kubelet_validation
from karpenter.providers.aws.userdata.ami_families import AL2023, effective_ami_family
from karpenter.providers.aws.userdata.kubelet_settings import KubeletTypeFacts

_REQUEUE_SECONDS = 10 * MINUTE
_RETRY_SECONDS = 5.0
_NOT_READY = "DependenciesNotReady"
_DEPENDENCIES = (AMIS_READY, INSTANCE_PROFILE_READY, SECURITY_GROUPS_READY, SUBNETS_READY)
_OWN_ANNOTATIONS = (HASH_ANNOTATION, HASH_VERSION_ANNOTATION)


@dataclass(frozen=True)
class ValidationInputs:
    """What validation needs from other parts.

    ``service_cidr`` finds the cluster's service addresses and keeps them (AWS-026). It raises ``AwsError``. ``kubelet_facts`` are
    those of all known types for a class, ``types`` its types; it raises ``ProviderError``. ``is_compatible`` is AWS-340.
    ``missing_to_join`` lists what the cluster lacks so that instances of a class can join (AWS-936). It raises ``KubeError``.
    """

    service_cidr: Callable[[], Awaitable[str]]
    pools: Callable[[], Iterable[NodePool]]
    kubelet_facts: Callable[[EC2NodeClass], tuple[KubeletTypeFacts, ...]]
    types: Callable[[EC2NodeClass], tuple[InstanceType, ...]]
    is_compatible: TypeFits
    missing_to_join: Callable[[EC2NodeClass], Awaitable[tuple[str, ...]]]


class ValidationReconciler:
    """Judges classes. ``dry_runs`` is None where they are switched off (AWS-110); ``expressions`` is gate NodeClassCEL.

    ``shares_gpus``: gate DRANVIDIAGPU.
    """

    condition: Final = VALIDATION_SUCCEEDED

    def __init__(
        self,
        inputs: ValidationInputs,
        dry_runs: LaunchDryRuns | None,
        expressions: bool,
        *,
        shares_gpus: bool = False,
    ) -> None:
        self._shares_gpus = shares_gpus
        self._inputs = inputs
        self._dry_runs = dry_runs
        self._expressions = expressions

    async def reconcile(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """See ``NodeClassSubreconciler.reconcile``."""
        result = await self._service_cidr(node_class) or self._static_result(node_class)
        result = result or await self._prerequisites(node_class)
        return result or await self._dry_run_result(node_class)

    async def _service_cidr(self, node_class: EC2NodeClass) -> SubreconcileResult | None:
        """AWS-100: user data of AL2023 contains the service addresses, and sometimes only EKS knows them."""
        if effective_ami_family(node_class.spec) != AL2023:
            return None
        try:
            await self._inputs.service_cidr()
        except AwsError as error:
            if error.status >= 500:
                return SubreconcileResult(node_class.status, requeue_after=_RETRY_SECONDS)
            message = f"failed to detect the cluster CIDR: {error}"
            return SubreconcileResult(
                node_class.status,
                condition_false(VALIDATION_SUCCEEDED, "ClusterCIDRResolutionFailed", message),
                error=error,
            )
        return None

    async def _prerequisites(self, node_class: EC2NodeClass) -> SubreconcileResult | None:
        """AWS-936: an instance that cannot join costs money until its NodeClaim's time to register is over."""
        try:
            missing = await self._inputs.missing_to_join(node_class)
        except KubeError as error:
            return SubreconcileResult(node_class.status, requeue_after=_RETRY_SECONDS, error=error)
        if not missing:
            return None
        message = f"nodes cannot join with a token; missing: {'; '.join(missing)}"
        condition = condition_false(VALIDATION_SUCCEEDED, "BootstrapPrerequisitesMissing", message)
        return SubreconcileResult(node_class.status, condition, MINUTE)

    def _static_result(self, node_class: EC2NodeClass) -> SubreconcileResult | None:
        """What can be judged without launching: the kubelet, the volumes, and conditions to wait for (AWS-101 to AWS-108)."""
        problem = (
            join_problem(node_class)
            or kubelet_problem(node_class.spec, self._expressions)
            or volume_problem(node_class.spec)
            or sharing_problem(node_class, shares_gpus=self._shares_gpus)
        )
        if problem is not None:
            return problem.as_result(node_class)
        missing = _dependencies_condition(node_class)
        if missing is not None:
            return SubreconcileResult(node_class.status, missing, _REQUEUE_SECONDS)
        if kubelet_validation.expression_settings(node_class.spec.kubelet):
            facts = self._inputs.kubelet_facts(node_class)
            if not facts:
                return SubreconcileResult(node_class.status, requeue_after=_RETRY_SECONDS)
            failed = kubelet_validation.expression_failures(node_class.spec.kubelet, facts)
            if failed:
                return NodeClassProblem("KubeletExpressionEvaluationFailed", "; ".join(failed)).as_result(node_class)
        keys = restricted_tags(node_class)
        if keys:
            return NodeClassProblem("TagValidationFailed", f"spec.tags: {', '.join(keys)}: ours to set").as_result(
                node_class
            )
        return None

    async def _dry_run_result(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """The outcome of dry runs of the launch calls, cached per spec (AWS-109 to AWS-119)."""
        if self._dry_runs is None:
            return SubreconcileResult(node_class.status, condition_true(VALIDATION_SUCCEEDED), _REQUEUE_SECONDS)
        key = dry_run_cache_key(node_class, node_pools_of(node_class, self._inputs.pools()))
        outcomes = self._dry_runs.cached_results(key)
        if outcomes is None:
            candidates = dry_run_candidates(
                node_class, self._inputs.pools(), self._inputs.types(node_class), self._inputs.is_compatible
            )
            if not candidates:
                return _no_compatible_types(node_class)
            outcomes = await self._dry_runs.run(node_class, key, candidates)
        return _result_of_dry_runs(node_class, outcomes)


@dataclass(frozen=True)
class NodeClassProblem:
    """Why a class is not valid; ``terminal`` problems stay until the class changes."""

    reason: str
    message: str
    terminal: bool = True

    def as_result(self, node_class: EC2NodeClass) -> SubreconcileResult:
        """The same as the result of a subreconciler."""
        return SubreconcileResult(
            node_class.status, condition_false(VALIDATION_SUCCEEDED, self.reason, self.message), terminal=self.terminal
        )


def join_problem(node_class: EC2NodeClass) -> NodeClassProblem | None:
    """Annotations of self-managed clusters that cannot be followed (AWS-901)."""
    message = join_rules.bootstrap_problem(node_class)
    return NodeClassProblem("UnsupportedBootstrap", message) if message else None


def kubelet_problem(spec: EC2NodeClassSpec, expressions: bool) -> NodeClassProblem | None:
    """What is wrong with the kubelet's settings by themselves (AWS-101 to AWS-104)."""
    wrong = kubelet_validation.kubelet_violations(spec.kubelet)
    if wrong:
        return NodeClassProblem("InvalidKubeletConfiguration", _with_paths(wrong), terminal=False)
    computed = kubelet_validation.expression_settings(spec.kubelet)
    if computed and not expressions:
        message = f"spec.kubelet: {', '.join(computed)}: expressions need the feature gate NodeClassCEL"
        return NodeClassProblem("KubeletExpressionsDisabled", message)
    faulty = kubelet_validation.expression_faults(spec.kubelet)
    if faulty:
        return NodeClassProblem("KubeletExpressionInvalid", _with_paths(faulty))
    ignored = kubelet_validation.unsupported_settings(effective_ami_family(spec), spec.kubelet)
    return NodeClassProblem("UnsupportedKubeletConfiguration", _with_paths(ignored)) if ignored else None


def volume_problem(spec: EC2NodeClassSpec) -> NodeClassProblem | None:
    """A volume's size that is none, which admission lets through (AWS-054)."""
    for index, mapping in enumerate(spec.block_device_mappings):
        size = mapping.ebs.volume_size if mapping.ebs is not None else None
        if size is None:
            continue
        try:
            volume_size_gib(size)
        except VolumeSizeError as error:
            message = f"spec.blockDeviceMappings[{index}].ebs.volumeSize: {error}"
            return NodeClassProblem("InvalidBlockDeviceMapping", message)
    return None


def sharing_problem(node_class: EC2NodeClass, *, shares_gpus: bool) -> NodeClassProblem | None:
    """An annotation about sharing GPUs that cannot be read, or has no effect (K15-A25, K15-A26)."""
    key = aws_labels.NVIDIA_CONSUMABLE_CAPACITY
    try:
        sharing = parse_gpu_sharing(node_class)
    except GpuSharingError as error:
        return NodeClassProblem("NVIDIAConsumableCapacityInvalid", f"annotation {key}, {error}")
    if sharing == NO_SHARING or shares_gpus:
        return None
    message = f"annotation {key} enables GPU sharing, but the feature gate DRANVIDIAGPU is disabled"
    return NodeClassProblem("DRADisabled", message)


def dry_run_cache_key(node_class: EC2NodeClass, pools: Iterable[NodePool]) -> str:
    """Stands for everything a verdict by dry runs depends on, and for this very class (AWS-109, AWS-124)."""
    status, meta = node_class.status, node_class.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key not in _OWN_ANNOTATIONS}
    covered = (
        meta.uid,
        node_class.spec,
        annotations,
        sorted(subnet.id for subnet in status.subnets),
        sorted(group.id for group in status.security_groups),
        status.amis,
        status.instance_profile,
        [(pool.metadata.name, pool.spec.template) for pool in pools],
    )
    return hashlib.sha256(msgspec.json.encode(covered, order="deterministic")).hexdigest()


def _dependencies_condition(node_class: EC2NodeClass) -> Condition | None:
    """The condition while other conditions of the class are not yet true; None once they are (AWS-105, AWS-106)."""
    states: Mapping[str, str] = {
        type_: conditions.condition_status(node_class.status.conditions, type_) for type_ in _DEPENDENCIES
    }
    waiting = {type_: state for type_, state in states.items() if state != conditions.TRUE}
    if not waiting:
        return None
    message = "Awaiting " + ", ".join(f"{type_}={state}" for type_, state in waiting.items())
    if conditions.FALSE in waiting.values():
        return condition_false(VALIDATION_SUCCEEDED, _NOT_READY, message)
    return condition_unknown(VALIDATION_SUCCEEDED, _NOT_READY, message)


def _no_compatible_types(node_class: EC2NodeClass) -> SubreconcileResult:
    images = ", ".join(dict.fromkeys(ami.id for ami in node_class.status.amis))
    message = f"no instance type fits the images of the class ({images})"
    return SubreconcileResult(
        node_class.status, condition_false(VALIDATION_SUCCEEDED, "NoCompatibleInstanceTypes", message), MINUTE
    )


def _result_of_dry_runs(node_class: EC2NodeClass, outcomes: tuple[DryRunResult, ...]) -> SubreconcileResult:
    refused = [outcome for outcome in outcomes if outcome.reason]
    if refused:
        message = "; ".join(outcome.message for outcome in refused)
        again = _REQUEUE_SECONDS if all(outcome.cacheable for outcome in outcomes) else _RETRY_SECONDS
        return SubreconcileResult(
            node_class.status, condition_false(VALIDATION_SUCCEEDED, refused[0].reason, message), again
        )
    if all(outcome.passed for outcome in outcomes):
        unproven = ", ".join(outcome.inconclusive for outcome in outcomes if outcome.inconclusive)
        message = f"dry runs that prove nothing: {unproven}" if unproven else ""
        return SubreconcileResult(node_class.status, condition_true(VALIDATION_SUCCEEDED, message), _REQUEUE_SECONDS)
    return SubreconcileResult(node_class.status, requeue_after=_RETRY_SECONDS)


def _with_paths(findings: Iterable[str]) -> str:
    return "; ".join(f"spec.kubelet.{finding}" for finding in findings)
