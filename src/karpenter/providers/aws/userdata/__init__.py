"""The data an instance boots with: how it finds its cluster, and what its kubelet is told (AWS §6).

``render`` is the whole of it. What the class's owner wrote goes through one family's writer, which joins it with what we have
to say in the form the family's boot program reads: MIME parts, a NodeConfig, TOML, PowerShell, or not at all. Facts about the
cluster come from ``Cluster``, never from EKS, so a writer does not know what kind of cluster it boots into. Replacing variables
in the owner's text (AWS §21.3) would be one more step before the writer; nothing here depends on its absence.

The same input always gives the same bytes: they are part of what launch templates are told apart by (AWS-226, AWS-480).
"""

from karpenter.providers.aws.userdata.bootstrap_options import BootstrapOptions, UserDataError
from karpenter.providers.aws.userdata.user_data import render_user_data

__all__ = ["BootstrapOptions", "UserDataError", "render_user_data"]
