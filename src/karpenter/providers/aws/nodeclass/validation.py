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

from karpenter.api.ec2 import EC2NodeClass, EC2NodeClassSpec
from karpenter.api.karpenter import NodePool
from karpenter.api.meta import Condition
from karpenter.catalog.types import InstanceType
from karpenter.model import conditions
from karpenter.model.ec2_volumes import VolumeSizeError, volume_size_gib
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.kubelet import rules
from karpenter.providers.aws.kubelet.resolved import TypeFacts
from karpenter.providers.aws.nodeclass.dry_runs import PASSED, DryRuns, Outcome
from karpenter.providers.aws.nodeclass.hashing import HASH, VERSION
from karpenter.providers.aws.nodeclass.told import (
    AMIS,
    INSTANCE_PROFILE,
    MINUTE,
    SECURITY_GROUPS,
    SUBNETS,
    VALIDATION,
    Told,
    false,
    true,
    unknown,
)
from karpenter.providers.aws.nodeclass.trials import Fits, restricted_tags, trials
from karpenter.providers.aws.userdata.families import AL2023, effective_family

_AGAIN_SECONDS = 10 * MINUTE
_SOON_SECONDS = 5.0
_NOT_READY = "DependenciesNotReady"
_NEEDED = (AMIS, INSTANCE_PROFILE, SECURITY_GROUPS, SUBNETS)
_OURS = (HASH, VERSION)


@dataclass(frozen=True)
class Knowledge:
    """What validation is told by others.

    ``service_cidr`` finds the cluster's service addresses and remembers them (AWS-026), raising ``AwsError``; ``facts`` are those
    of all known types for a class, ``types`` its types, raising ``ProviderError``; ``fits`` is AWS-340.
    """

    service_cidr: Callable[[], Awaitable[str]]
    pools: Callable[[], Iterable[NodePool]]
    facts: Callable[[EC2NodeClass], tuple[TypeFacts, ...]]
    types: Callable[[EC2NodeClass], tuple[InstanceType, ...]]
    fits: Fits


class ValidationPart:
    """Judges classes. ``dry_runs`` is None where they are switched off (AWS-110); ``expressions`` is gate NodeClassCEL."""

    condition: Final = VALIDATION

    def __init__(self, knowledge: Knowledge, dry_runs: DryRuns | None, expressions: bool) -> None:
        self._knowledge = knowledge
        self._dry_runs = dry_runs
        self._expressions = expressions

    async def look(self, node_class: EC2NodeClass) -> Told:
        """See ``Part.look``."""
        found = await self._service_cidr(node_class) or self._judged(node_class)
        return found or await self._tried(node_class)

    async def _service_cidr(self, node_class: EC2NodeClass) -> Told | None:
        """AWS-100: machines of AL2023 have to be told, and nobody but EKS may know."""
        if effective_family(node_class.spec) != AL2023:
            return None
        try:
            await self._knowledge.service_cidr()
        except AwsError as error:
            if error.status >= 500:
                return Told(node_class.status, again_seconds=_SOON_SECONDS)
            message = f"failed to detect the cluster CIDR: {error}"
            return Told(node_class.status, false(VALIDATION, "ClusterCIDRResolutionFailed", message), fault=error)
        return None

    def _judged(self, node_class: EC2NodeClass) -> Told | None:
        """AWS-101 to AWS-108."""
        problem = kubelet_problem(node_class.spec, self._expressions) or volume_problem(node_class.spec)
        if problem is not None:
            return problem.told(node_class)
        missing = _missing(node_class)
        if missing is not None:
            return Told(node_class.status, missing, _AGAIN_SECONDS)
        if rules.expressions(node_class.spec.kubelet):
            facts = self._knowledge.facts(node_class)
            if not facts:
                return Told(node_class.status, again_seconds=_SOON_SECONDS)
            failed = rules.failures(node_class.spec.kubelet, facts)
            if failed:
                return Problem("KubeletExpressionEvaluationFailed", "; ".join(failed)).told(node_class)
        keys = restricted_tags(node_class)
        if keys:
            return Problem("TagValidationFailed", f"spec.tags: {', '.join(keys)}: ours to set").told(node_class)
        return None

    async def _tried(self, node_class: EC2NodeClass) -> Told:
        """AWS-109 to AWS-119."""
        if self._dry_runs is None:
            return Told(node_class.status, true(VALIDATION), _AGAIN_SECONDS)
        key = verdict_key(node_class)
        outcomes = self._dry_runs.known(key)
        if outcomes is None:
            wanted = trials(
                node_class, self._knowledge.pools(), self._knowledge.types(node_class), self._knowledge.fits
            )
            if not wanted:
                return _unfit(node_class)
            outcomes = await self._dry_runs.judge(node_class, key, wanted)
        return _verdict(node_class, outcomes)


@dataclass(frozen=True)
class Problem:
    """Why a class cannot be valid; ``final`` until somebody changes it."""

    reason: str
    message: str
    final: bool = True

    def told(self, node_class: EC2NodeClass) -> Told:
        """The same as a part of the look tells it."""
        return Told(node_class.status, false(VALIDATION, self.reason, self.message), final=self.final)


def kubelet_problem(spec: EC2NodeClassSpec, expressions: bool) -> Problem | None:
    """What is wrong with the kubelet's settings by themselves (AWS-101 to AWS-104)."""
    wrong = rules.violations(spec.kubelet)
    if wrong:
        return Problem("InvalidKubeletConfiguration", _located(wrong), final=False)
    computed = rules.expressions(spec.kubelet)
    if computed and not expressions:
        paths = ", ".join(computed)
        message = f"spec.kubelet: {paths}: expressions need the feature gate NodeClassCEL"
        return Problem("KubeletExpressionsDisabled", message)
    faulty = rules.faults(spec.kubelet)
    if faulty:
        return Problem("KubeletExpressionInvalid", _located(faulty))
    ignored = rules.unsupported(effective_family(spec), spec.kubelet)
    return Problem("UnsupportedKubeletConfiguration", _located(ignored)) if ignored else None


def volume_problem(spec: EC2NodeClassSpec) -> Problem | None:
    """A volume's size that is none, which admission lets through (AWS-054)."""
    for index, mapping in enumerate(spec.block_device_mappings):
        size = mapping.ebs.volume_size if mapping.ebs is not None else None
        if size is None:
            continue
        try:
            volume_size_gib(size)
        except VolumeSizeError as error:
            message = f"spec.blockDeviceMappings[{index}].ebs.volumeSize: {error}"
            return Problem("InvalidBlockDeviceMapping", message)
    return None


def verdict_key(node_class: EC2NodeClass) -> str:
    """Stands for everything a verdict by dry runs depends on, and for this very class (AWS-109, AWS-124)."""
    status, meta = node_class.status, node_class.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key not in _OURS}
    covered = (
        meta.uid,
        node_class.spec,
        annotations,
        sorted(subnet.id for subnet in status.subnets),
        sorted(group.id for group in status.security_groups),
        status.amis,
        status.instance_profile,
    )
    return hashlib.sha256(msgspec.json.encode(covered, order="deterministic")).hexdigest()


def _missing(node_class: EC2NodeClass) -> Condition | None:
    """AWS-105, AWS-106."""
    states: Mapping[str, str] = {type_: conditions.status(node_class.status.conditions, type_) for type_ in _NEEDED}
    waiting = {type_: state for type_, state in states.items() if state != conditions.TRUE}
    if not waiting:
        return None
    message = "Awaiting " + ", ".join(f"{type_}={state}" for type_, state in waiting.items())
    if conditions.FALSE in waiting.values():
        return false(VALIDATION, _NOT_READY, message)
    return unknown(VALIDATION, _NOT_READY, message)


def _unfit(node_class: EC2NodeClass) -> Told:
    images = ", ".join(dict.fromkeys(ami.id for ami in node_class.status.amis))
    message = f"no instance type fits the images of the class ({images})"
    return Told(node_class.status, false(VALIDATION, "NoCompatibleInstanceTypes", message), MINUTE)


def _verdict(node_class: EC2NodeClass, outcomes: tuple[Outcome, ...]) -> Told:
    refused = [item for item in outcomes if item.reason]
    if refused:
        message = "; ".join(item.message for item in refused)
        again = _AGAIN_SECONDS if all(item.kept for item in outcomes) else _SOON_SECONDS
        return Told(node_class.status, false(VALIDATION, refused[0].reason, message), again)
    if all(item == PASSED for item in outcomes):
        return Told(node_class.status, true(VALIDATION), _AGAIN_SECONDS)
    return Told(node_class.status, again_seconds=_SOON_SECONDS)


def _located(findings: Iterable[str]) -> str:
    return "; ".join(f"spec.kubelet.{finding}" for finding in findings)
