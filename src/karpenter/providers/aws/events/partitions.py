"""Which partition of its placement group a machine is in: EC2 decides when it starts, and pods are spread by it (AWS-612)."""

from __future__ import annotations

from karpenter.api.karpenter import NodeClaim
from karpenter.model import labels
from karpenter.providers.aws.errors import AwsError
from karpenter.providers.aws.ports import InstancePort
from karpenter.providers.contract import Pending, ProviderError, Satisfied

PARTITION = f"{labels.AWS_GROUP}/placement-group-partition"


class PartitionKnown:
    """A registration hook: a claim of a partition group waits until EC2 says which partition it is."""

    name = "placement-group-partition"

    def __init__(self, port: InstancePort) -> None:
        self._port = port

    async def ask(self, claim: NodeClaim) -> Satisfied | Pending:
        """See ``RegistrationHook``: the partition as a label. Only an empty label waits, none is no group's."""
        if claim.metadata.labels.get(PARTITION) != "":
            return Satisfied()
        partition = await self._partition(claim.status.provider_id.rpartition("/")[2])
        return Satisfied(labels={PARTITION: str(partition)}) if partition else Pending()

    async def _partition(self, instance: str) -> int:
        """Its number, 0 where it is not known yet: also while EC2 does not know a new machine everywhere."""
        try:
            found = await self._port.describe_instances((instance,))
        except AwsError as error:
            if error.is_not_found:
                return 0
            raise ProviderError(f"the placement of {instance} cannot be read: {error}") from error
        return found[0].placement.partition_number if found else 0
