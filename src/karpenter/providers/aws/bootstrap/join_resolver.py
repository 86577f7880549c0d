"""What a NodeClaim's instance needs to join with kubeadm: its token, and where the instance finds it."""

from __future__ import annotations

from dataclasses import replace

import structlog

from karpenter.api.ec2_node_class import EC2NodeClass
from karpenter.api.karpenter import NodeClaim
from karpenter.kube.errors import KubeError
from karpenter.model import labels
from karpenter.providers.aws.aws_apis import SsmApi
from karpenter.providers.aws.aws_errors import AwsError
from karpenter.providers.aws.bootstrap import join_rules
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapSettings, TokenDelivery
from karpenter.providers.aws.bootstrap.bootstrap_token import BootstrapToken, JoinParameters
from karpenter.providers.aws.bootstrap.token_issuer import TokenIssuer
from karpenter.providers.aws.userdata.join_configuration import names_claim, wants_token
from karpenter.providers.contract import LaunchFailed

_TOKEN_DELETIONS_FAIL = "deleting the bootstrap token of a failed launch failed; it expires"
_log = structlog.get_logger()


def join_parameters(
    node_class: EC2NodeClass, claim_name: str, pool: str, token: BootstrapToken | None
) -> JoinParameters:
    """The parameters of a class. The claim's name is left out where the user data does not contain it."""
    annotations = node_class.metadata.annotations
    return JoinParameters(
        claim=claim_name if names_claim(node_class.spec.user_data or "") else "",
        pool=pool,
        node_class=node_class.metadata.name,
        token=token,
        node_name_source=annotations.get(join_rules.NODE_NAME_ANNOTATION, ""),
        is_compressed=annotations.get(join_rules.COMPRESS_ANNOTATION) == join_rules.GZIP,
    )


class JoinResolver:
    """Implements ``JoinParameterSource`` of the launch."""

    def __init__(self, issuer: TokenIssuer, ssm: SsmApi, settings: BootstrapSettings, cluster_name: str) -> None:
        self._issuer = issuer
        self._ssm = ssm
        self._settings = settings
        self._cluster_name = cluster_name

    async def parameters(self, claim: NodeClaim, node_class: EC2NodeClass) -> JoinParameters | None:
        """The parameters of a claim, None where its class is no template. Raises ``LaunchFailed``."""
        if not join_rules.joins_with_kubeadm(node_class, self._settings):
            return None
        name, pool = claim.metadata.name, claim.metadata.labels.get(labels.NODE_POOL, "")
        is_external = self._settings.token_delivery is TokenDelivery.EXTERNAL
        if is_external or not wants_token(node_class.spec.user_data or ""):
            return join_parameters(node_class, name, pool, None)
        token = await self._issuer.token_for(claim, node_class)
        if self._settings.token_delivery is TokenDelivery.WINDOW:
            return join_parameters(node_class, name, pool, token)
        if self._settings.token_delivery is TokenDelivery.PER_CLAIM:
            return replace(join_parameters(node_class, name, pool, token), is_single_use=True)
        parameter = self._parameter_name(name)
        await self._store_parameter(parameter, token)
        return replace(join_parameters(node_class, name, pool, None), token_parameter=parameter, is_single_use=True)

    async def launch_failed(self, claim: NodeClaim) -> None:
        """Delete what was made for a launch without an instance. Errors are logged."""
        try:
            await self.revoke(claim.metadata.name)
        except (KubeError, AwsError) as error:
            _log.warning(_TOKEN_DELETIONS_FAIL, error=str(error), NodeClaim={"name": claim.metadata.name})

    async def revoke(self, claim_name: str) -> None:
        """Delete the claim's token and its parameter, if it has any. Raises ``KubeError`` and ``AwsError``."""
        if not self._issuer.holds_token(claim_name):
            return
        if self._settings.token_delivery is TokenDelivery.PARAMETER:
            await self._delete_parameter(self._parameter_name(claim_name))
        await self._issuer.revoke(claim_name)

    def _parameter_name(self, claim_name: str) -> str:
        return f"/karpenter/{self._cluster_name}/{claim_name}"

    async def _store_parameter(self, name: str, token: BootstrapToken) -> None:
        try:
            await self._ssm.put_secure_parameter(name, token.value)
        except AwsError as error:
            raise LaunchFailed("BootstrapTokenFailed", f"storing SSM parameter {name}: {error}") from error

    async def _delete_parameter(self, name: str) -> None:
        try:
            await self._ssm.delete_parameter(name)
        except AwsError as error:
            if error.code != "ParameterNotFound":
                raise
