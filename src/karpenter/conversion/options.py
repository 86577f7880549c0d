"""What manifests of older releases leave open, because the controller's settings or the webhook knew it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ConversionOptions:
    """Choices of the user (API-815). Empty text: not given."""

    #: Leave out the requirements that the webhook wrote into every Provisioner (API-765).
    ignore_defaults: bool = False
    node_role: str = ""
    instance_profile: str = ""
    default_node_class: str = "default"
    cluster_name: str = ""
    #: Minor version such as ``1.33``.
    kubernetes_version: str = ""
    #: Pass objects of other kinds through.
    keep_others: bool = False
