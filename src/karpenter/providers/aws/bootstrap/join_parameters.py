"""What the user data of one NodeClaim contains when its instance joins with kubeadm. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from karpenter.providers.aws.bootstrap.bootstrap_token import BootstrapToken

#: Names a Node can be given, each with its path in the instance metadata.
NODE_NAME_SOURCES = {"instance-id": "instance-id", "private-dns": "local-hostname"}


@dataclass(frozen=True)
class JoinParameters:
    """What the user data of one NodeClaim says beside what its class, its type and the cluster say.

    ``claim`` is empty where the text does not name it, so that equal claims have equal user data. ``token`` is None where
    instances join by other means; ``token_parameter`` names the SSM parameter that holds it instead of the user data.
    ``is_single_use``: no other NodeClaim can have the same user data.
    """

    claim: str = ""
    pool: str = ""
    node_class: str = ""
    token: BootstrapToken | None = None
    token_parameter: str = ""
    node_name_source: str = ""
    is_compressed: bool = False
    is_single_use: bool = False
