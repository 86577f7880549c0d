"""The ports to AWS over boto3, the only room that knows the library.

``Account`` has all ports; ``start`` asks, before anything else begins, whether they work and what cluster this is. A call is data
(``operations``), waits for its turn (``pacing``), runs in a thread (``threads``, ``service``) and fails as an ``AwsError``
(``faults``). What botocore finds out by itself, credentials above all, is described in ``account``.
"""

from karpenter.providers.aws.sdk.aws_session import AwsSession, AwsSessionOptions
from karpenter.providers.aws.sdk.botocore_errors import error_log_fields

__all__ = ["AwsSession", "AwsSessionOptions", "error_log_fields"]
