"""What a launch has to know of types and of what machines boot with; the market and the user data of the families tell."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from karpenter.api.core import Taint
from karpenter.api.ec2 import EC2NodeClass
from karpenter.catalog.types import InstanceType
from karpenter.model import labels
from karpenter.model import resources as res
from karpenter.providers.aws.kubelet.resolved import Resolved, resolve
from karpenter.providers.aws.launch.contents import Machine, template_data
from karpenter.providers.aws.launch.plan import Boot
from karpenter.providers.aws.nodeclass.trials import Trial, resource_tags
from karpenter.providers.aws.settings import AwsSettings, Cluster
from karpenter.providers.aws.shapes import LaunchTemplateData
from karpenter.providers.aws.types.market import Market
from karpenter.providers.aws.userdata.families import effective_family
from karpenter.providers.aws.userdata.inputs import Bootstrap, UserDataError
from karpenter.providers.aws.userdata.rendering import render, weigh
from karpenter.providers.aws.userdata.versions import image_version
from karpenter.providers.contract import LaunchFailed

_RAID0 = "RAID0"

#: Told how many bytes of user data a class's machines get (AWS-225).
Weighed = Callable[[str, int], None]


class Booting:
    """Implements ``launch.plan.Knowledge``; ``cluster`` is the cluster as it is now."""

    def __init__(self, market: Market, cluster: Callable[[], Cluster], settings: AwsSettings, weighed: Weighed) -> None:
        self._market = market
        self._cluster = cluster
        self._settings = settings
        self._weighed = weighed

    def efa_interfaces(self, instance_type: str) -> int:
        """How many EFA interfaces a type can have."""
        found = self._market.facts(instance_type)
        info = found.network_info.efa_info if found is not None else None
        return info.maximum_efa_interfaces if info is not None else 0

    def kubelet(self, node_class: EC2NodeClass, instance_type: InstanceType) -> Resolved:
        """The class's kubelet settings on a type."""
        facts = self._market.kubelet_facts(node_class).get(instance_type.name)
        return (
            Resolved() if facts is None else resolve(node_class.spec.kubelet, facts, self._settings.kubelet_expressions)
        )

    def user_data(self, boot: Boot) -> bytes:
        """The data a machine boots with, before base64. Raises ``ProviderError``."""
        node_class = boot.node_class
        spec = node_class.spec
        servers = spec.kubelet.get("clusterDNS")
        own_dns = tuple(map(str, servers)) if isinstance(servers, list | tuple) else ()
        given = Bootstrap(
            cluster=self._cluster(),
            family=effective_family(spec),
            labels=boot.labels,
            taints=boot.taints,
            kubelet=spec.kubelet,
            reserved=replace(boot.kubelet, cluster_dns=own_dns),
            max_pods=boot.max_pods,
            custom=spec.user_data or "",
            raid0=spec.instance_store_policy == _RAID0,
            image_version=image_version(node_class),
        )
        try:
            data = render(given)
        except UserDataError as error:
            raise LaunchFailed(
                "LaunchFailed", f"spec.userData of EC2NodeClass {node_class.metadata.name}: {error}"
            ) from error
        self._weighed(node_class.metadata.name, weigh(data))
        return data

    def trial_data(self, node_class: EC2NodeClass, trial: Trial) -> LaunchTemplateData:
        """The data of a template that is only tried out. Raises ``ProviderError``."""
        boot = Boot(
            node_class=node_class,
            labels={labels.CAPACITY_TYPE: trial.capacity_type},
            taints=_NO_TAINTS,
            max_pods=trial.instance_type.capacity.get(res.PODS, 0) // res.ONE,
            kubelet=self.kubelet(node_class, trial.instance_type),
        )
        machine = Machine(
            image_id=trial.image.id,
            user_data=self.user_data(boot),
            capacity_type=trial.capacity_type,
            tenancy=trial.tenancy,
        )
        cluster = self._cluster()
        tags = resource_tags(node_class, cluster)
        return template_data(node_class, cluster, machine, tags, self._settings.reserved_capacity)


_NO_TAINTS: tuple[Taint, ...] = ()
