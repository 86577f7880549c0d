"""User data: how an instance finds its cluster, and the configuration of its kubelet (AWS §6).

``user_data`` renders it. The user data of the EC2NodeClass goes through the writer of its AMI family, which merges it with ours
in the format that the family's boot program reads: MIME parts, a NodeConfig, TOML, PowerShell, or not at all. Facts about the
cluster come from ``AwsClusterInfo``, never from EKS, so a writer does not know what kind of cluster it boots into. Replacing
variables in the owner's text (AWS §21.3) would be one more step before the writer; nothing here depends on its absence.

The same input always gives the same bytes, because the name of a launch template is a hash of them (AWS-226, AWS-480).
"""

from karpenter.providers.aws.userdata.bootstrap_options import BootstrapOptions, UserDataError
from karpenter.providers.aws.userdata.user_data import render_user_data

__all__ = ["BootstrapOptions", "UserDataError", "render_user_data"]
