"""The ports to AWS over boto3, the only room that knows the library.

``Account`` has all ports; ``start`` asks, before anything else begins, whether they work and what cluster this is. A call is data
(``operations``), waits for its turn (``pacing``), runs in a thread (``threads``, ``service``) and fails as an ``AwsError``
(``faults``). What botocore finds out by itself, credentials above all, is described in ``account``.
"""

from karpenter.providers.aws.boto.account import Account, Options
from karpenter.providers.aws.boto.faults import log_keys

__all__ = ["Account", "Options", "log_keys"]
