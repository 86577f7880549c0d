"""Shell snippets for user data: what only the instance itself can know (AWS-917, AWS-926).

They need ``curl``; the one that reads a parameter needs the AWS command line. POSIX shell.
"""

from __future__ import annotations

from karpenter.providers.aws.bootstrap.join_parameters import NODE_NAME_SOURCES

_METADATA = """\
IMDS=http://169.254.169.254/latest
IMDS_TOKEN=$(curl -sf --retry 5 -X PUT "$IMDS/api/token" -H "X-aws-ec2-metadata-token-ttl-seconds: 300")
imds() { curl -sf --retry 5 -H "X-aws-ec2-metadata-token: $IMDS_TOKEN" "$IMDS/meta-data/$1"; }
PROVIDER_ID="aws:///$(imds placement/availability-zone)/$(imds instance-id)\""""


def provider_id(node_name_source: str) -> str:
    """Sets ``PROVIDER_ID``, and ``NODE_NAME`` where a source is given (a key of ``NODE_NAME_SOURCES``)."""
    if not node_name_source:
        return _METADATA
    return f'{_METADATA}\nNODE_NAME="$(imds {NODE_NAME_SOURCES[node_name_source]})"'


def token_from_parameter(parameter: str, region: str) -> str:
    """Sets ``BOOTSTRAP_TOKEN`` from an SSM parameter, which the instance's role must be allowed to read."""
    query = "--with-decryption --query Parameter.Value --output text"
    return f'BOOTSTRAP_TOKEN="$(aws ssm get-parameter --region {region} --name {parameter} {query})"'
