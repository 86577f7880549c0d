"""The end of a class: its machines first, then what was made for it, then the class (AWS-123, AWS-124)."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import structlog

from karpenter.api.ec2 import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.api.kinds import EC2_NODE_CLASS
from karpenter.kube.errors import NotFound
from karpenter.kube.protocol import Writer
from karpenter.model import labels
from karpenter.providers.aws import names
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.nodeclass.news import KIND
from karpenter.providers.aws.nodeclass.profiles import Profiles, class_path, legacy_name
from karpenter.providers.aws.nodeclass.told import MINUTE
from karpenter.providers.aws.ports import TemplatePort
from karpenter.providers.aws.settings import Cluster
from karpenter.providers.aws.shapes import Filter
from karpenter.providers.aws.surroundings import Herald

#: AWS-063
FINALIZER = f"{labels.AWS_GROUP}/termination"
_WAIT_SECONDS = 10 * MINUTE
_NAMED_AT_MOST = 5
_log = structlog.get_logger()


class Leftovers:
    """Deletes from AWS what was made for a class. ``profiles`` is None in a VPC that cannot reach IAM (AWS-004)."""

    def __init__(self, profiles: Profiles | None, templates: TemplatePort, cluster: Cluster) -> None:
        self._profiles = profiles
        self._templates = templates
        self._cluster = cluster

    async def delete(self, node_class: EC2NodeClass) -> None:
        """Delete profiles and launch templates. Raises ``AwsError``; calling again goes on."""
        if self._profiles is not None:
            await self._delete_profiles(self._profiles, node_class)
        await self._delete_templates(node_class)

    async def _delete_profiles(self, profiles: Profiles, node_class: EC2NodeClass) -> None:
        legacy = legacy_name(self._cluster, node_class)
        for name in (*await profiles.list(class_path(self._cluster, node_class)), *((legacy,) if legacy else ())):
            await profiles.delete(name)

    async def _delete_templates(self, node_class: EC2NodeClass) -> None:
        filters = (
            Filter(name=f"tag:{names.CLUSTER_TAG}", values=(self._cluster.name,)),
            Filter(name=f"tag:{names.NODE_CLASS}", values=(node_class.metadata.name,)),
        )
        for template in await self._templates.describe_launch_templates(filters=filters):
            try:
                await self._templates.delete_launch_template(template.launch_template_id)
            except AwsError as error:
                if not error.is_not_found:
                    raise
            told = {"launch-template-name": template.launch_template_name, "id": template.launch_template_id}
            _log.info("deleted launch template", **told)


class Termination:
    """Lets a class that is being deleted go. ``gone`` is told when it may be forgotten."""

    def __init__(
        self,
        leftovers: Leftovers,
        kube: Writer,
        herald: Herald,
        claims: Callable[[], Iterable[NodeClaim]],
        gone: Callable[[EC2NodeClass], None],
    ) -> None:
        self._leftovers = leftovers
        self._kube = kube
        self._herald = herald
        self._claims = claims
        self._gone = gone

    async def look(self, node_class: EC2NodeClass) -> float | None:
        """Take one step; seconds until the next look. Raises ``AwsError`` and ``KubeError``."""
        meta = node_class.metadata
        if FINALIZER not in meta.finalizers:
            return None
        waiting = sorted(claim.metadata.name for claim in self._claims() if uses(claim, meta.name))
        if waiting:
            message = f"Waiting on NodeClaim termination for {_listed(waiting)}"
            self._herald.normal(KIND, meta, "WaitingOnNodeClaimTermination", message)
            return _WAIT_SECONDS
        await self._leftovers.delete(node_class)
        remaining = [name for name in meta.finalizers if name != FINALIZER]
        try:
            patch = {"metadata": {"finalizers": remaining}}
            await self._kube.patch(EC2_NODE_CLASS, meta.name, patch, resource_version=meta.resource_version)
        except NotFound:
            pass
        self._gone(node_class)
        return None


def uses(claim: NodeClaim, name: str) -> bool:
    """Whether a claim's machine is made as this class says."""
    reference = claim.spec.node_class_ref
    return (reference.group, reference.kind, reference.name) == (EC2_NODE_CLASS.group, EC2_NODE_CLASS.name, name)


def _listed(names: list[str]) -> str:
    rest = len(names) - _NAMED_AT_MOST
    return ", ".join(names[:_NAMED_AT_MOST]) + (f" and {rest} other(s)" if rest > 0 else "")
