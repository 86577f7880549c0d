"""What user data contains so that an instance joins with kubeadm: its JoinConfiguration, v1beta3 and v1beta4 (AWS-925), the
hashes of the authorities (AWS-921), and shell snippets for what only the instance itself can know (AWS-917, AWS-926). Pure.

Variables in the user data of their classes (AWS-920 to AWS-924): only ``${NAME}`` with a known name that has a value is replaced,
once; all else stays byte for byte. So shell variables of the same form survive, and ``$${NAME}`` writes a literal ``${NAME}``.

The fields are those of https://kubernetes.io/docs/reference/config-api/kubeadm-config.v1beta4/. The snippets are POSIX shell and
need ``curl``; the one that reads a parameter needs the AWS command line.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from urllib.parse import urlsplit

import yaml

from karpenter.api.scheduling_constraints import Taint
from karpenter.model import labels, taints
from karpenter.providers.aws.bootstrap.bootstrap_token import NODE_NAME_SOURCES, JoinParameters
from karpenter.providers.aws.userdata import join_configuration
from karpenter.providers.aws.userdata.amazon_linux import kubelet_configuration
from karpenter.providers.aws.userdata.bootstrap_options import (
    BootstrapOptions,
    KubeletArguments,
    UserDataError,
    kubelet_extra_args,
    kubelet_flags,
)

#: The first minor version whose kubeadm reads v1beta4.
_FIRST_WITH_V1BETA4 = 31
_IN_TAINTS = "register-with-taints"
_UNFOLDED = 2**31


@dataclass(frozen=True)
class JoinTarget:
    """What an instance joins: ``host:port``, the token, hashes without prefix, ``major.minor`` of the cluster.

    ``node_name`` is empty where the host's name is the Node's.
    """

    endpoint: str
    token: str
    ca_hashes: tuple[str, ...]
    version: str
    node_name: str = ""


def join_document(arguments: KubeletArguments, target: JoinTarget) -> str:
    """The YAML document, without a line break at its end."""
    is_v1beta4 = int(target.version.partition(".")[2]) >= _FIRST_WITH_V1BETA4
    name = {"name": target.node_name} if target.node_name else {}
    document = {
        "apiVersion": f"kubeadm.k8s.io/{'v1beta4' if is_v1beta4 else 'v1beta3'}",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": target.endpoint,
                "token": target.token,
                "caCertHashes": [f"sha256:{digest}" for digest in target.ca_hashes],
            },
            "tlsBootstrapToken": target.token,
        },
        "nodeRegistration": {
            **name,
            "taints": [_taint_entry(taint) for taint in arguments.taints],
            "kubeletExtraArgs": _extra_arguments(_kubelet_arguments(arguments), is_v1beta4),
            "ignorePreflightErrors": [],
        },
    }
    return yaml.safe_dump(document, sort_keys=False, width=_UNFOLDED, allow_unicode=True).rstrip("\n")


def _kubelet_arguments(arguments: KubeletArguments) -> Mapping[str, str]:
    """The kubelet's flags. The instance itself fills in its provider ID (AWS-926)."""
    flags = {name: value for name, value in kubelet_flags(arguments) if name != _IN_TAINTS}
    return {**flags, "provider-id": "${PROVIDER_ID}"}


def _extra_arguments(arguments: Mapping[str, str], is_v1beta4: bool) -> object:
    if is_v1beta4:
        return [{"name": name, "value": value} for name, value in sorted(arguments.items())]
    return dict(sorted(arguments.items()))


def _taint_entry(taint: Taint) -> dict[str, str]:
    return {"key": taint.key, **({"value": taint.value} if taint.value else {}), "effect": taint.effect}


@lru_cache(maxsize=4)
def ca_hashes(ca_bundle: str) -> tuple[str, ...]:
    """SHA-256 of each authority's SubjectPublicKeyInfo in DER (RFC 7469), lower-case hex, in the order of the bundle.

    ``ca_bundle`` is base64 of PEM. Raises ``UserDataError`` where it holds no certificate.
    """
    # Only clusters of kubeadm need the library, which takes a tenth of a process's start.
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
    from cryptography.x509 import load_pem_x509_certificates

    try:
        certificates = load_pem_x509_certificates(base64.b64decode(ca_bundle, validate=True))
    except (binascii.Error, ValueError) as error:
        advice = "set --cluster-ca-bundle to base64 of its PEM"
        raise UserDataError(f"the certificate of the cluster's CA is not known; {advice}") from error
    keys = (certificate.public_key() for certificate in certificates)
    return tuple(
        hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest() for key in keys
    )


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


_REFERENCE = re.compile(r"(\$?)\$\{([A-Z][A-Z0-9_]*)\}")
_MAX_TYPOS = 2
_DEFAULT_PORTS = {"https": 443, "http": 80}


@dataclass(frozen=True)
class TemplateInputs:
    """What the variables of a text are made from."""

    options: BootstrapOptions
    join: JoinParameters

    @cached_property
    def arguments(self) -> KubeletArguments:
        """The arguments of the kubelet."""
        return KubeletArguments(self.options)

    @cached_property
    def host_and_port(self) -> tuple[str, int]:
        """Where the API server listens; an IPv6 address without brackets."""
        url = urlsplit(self.options.cluster.endpoint)
        return url.hostname or "", url.port or _DEFAULT_PORTS.get(url.scheme, 443)

    @property
    def host(self) -> str:
        """The host as a URL writes it."""
        host = self.host_and_port[0]
        return f"[{host}]" if ":" in host else host


def render_template(text: str, inputs: TemplateInputs) -> str:
    """The text with its variables replaced. Raises ``UserDataError`` for a variable whose value cannot be known."""

    def replacement(match: re.Match[str]) -> str:
        escape, name = match.groups()
        writer = _VARIABLES.get(name)
        if writer is None:
            return match[0]
        if escape:
            return f"${{{name}}}"
        value = writer(inputs)
        return match[0] if value is None else value

    return _REFERENCE.sub(replacement, text)


def template_names(text: str) -> frozenset[str]:
    """The variables a text uses."""
    return frozenset(name for escape, name in _REFERENCE.findall(text) if not escape and name in _VARIABLES)


def wants_token(text: str) -> bool:
    """Whether a text joins with a token (AWS-923)."""
    return not template_names(text).isdisjoint(_TOKEN_VARIABLES)


def names_claim(text: str) -> bool:
    """Whether a text differs between NodeClaims that are equal otherwise."""
    return "NODECLAIM" in template_names(text)


def lookalikes(text: str) -> Mapping[str, str]:
    """Unknown names that are nearly known ones, each with the name that was probably meant (AWS-922)."""
    names = (name for escape, name in _REFERENCE.findall(text) if not escape and name not in _KEPT_NAMES)
    near = {name: nearest for name in sorted(set(names)) if (nearest := _nearest_name(name))}
    return {name: nearest for name, nearest in near.items() if nearest != name}


def _nearest_name(name: str) -> str:
    """The known name within two edits, empty where there is none."""
    distances = {variable: _edit_distance(name, variable) for variable in _VARIABLES}
    nearest = min(distances, key=lambda variable: (distances[variable], variable))
    return nearest if distances[nearest] <= _MAX_TYPOS else ""


def _edit_distance(left: str, right: str) -> int:
    """Levenshtein's distance."""
    row = list(range(len(right) + 1))
    for index, character in enumerate(left, 1):
        previous, row[0] = row[0], index
        for column, other in enumerate(right, 1):
            previous, row[column] = (
                row[column],
                min(row[column] + 1, row[column - 1] + 1, previous + (character != other)),
            )
    return row[-1]


def _kubelet_document(inputs: TemplateInputs) -> str:
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        **kubelet_configuration(inputs.arguments),
    }
    return yaml.safe_dump(document, sort_keys=True, allow_unicode=True).rstrip("\n")


def _join_document(inputs: TemplateInputs) -> str | None:
    join = inputs.join
    if join.token is None and not join.token_parameter:
        return None
    host, port = inputs.host, inputs.host_and_port[1]
    target = join_configuration.JoinTarget(
        endpoint=f"{host}:{port}",
        token=_token(inputs) or "${BOOTSTRAP_TOKEN}",
        ca_hashes=join_configuration.ca_hashes(inputs.options.cluster.ca_bundle),
        version=inputs.options.cluster.version,
        node_name="${NODE_NAME}" if join.node_name_source else "",
    )
    return join_configuration.join_document(inputs.arguments, target)


def _token(inputs: TemplateInputs) -> str | None:
    token = inputs.join.token
    return token.value if token is not None and not inputs.join.token_parameter else None


def _token_snippet(inputs: TemplateInputs) -> str | None:
    join = inputs.join
    if join.token_parameter:
        return join_configuration.token_from_parameter(join.token_parameter, inputs.options.cluster.region)
    return f"BOOTSTRAP_TOKEN={join.token.value}" if join.token is not None else None


def _node_labels(inputs: TemplateInputs) -> str:
    return ",".join(f"{key}={value}" for key, value in inputs.arguments.labels.items())


def _ca_hash_list(inputs: TemplateInputs) -> Iterator[str]:
    return (f"sha256:{digest}" for digest in join_configuration.ca_hashes(inputs.options.cluster.ca_bundle))


#: Each variable by its name: its value, None where it has none and the text stays as it is.
_VARIABLES: Mapping[str, Callable[[TemplateInputs], str | None]] = {
    "CLUSTER_ENDPOINT": lambda inputs: inputs.host,
    "CLUSTER_ENDPOINT_PORT": lambda inputs: str(inputs.host_and_port[1]),
    "CLUSTER_ENDPOINT_HOSTPORT": lambda inputs: f"{inputs.host}:{inputs.host_and_port[1]}",
    "CLUSTER_ENDPOINT_URL": lambda inputs: inputs.options.cluster.endpoint,
    "BOOTSTRAP_TOKEN": _token,
    "BOOTSTRAP_TOKEN_SH": _token_snippet,
    "CA_CERT_HASH": lambda inputs: join_configuration.ca_hashes(inputs.options.cluster.ca_bundle)[0],
    "CA_CERT_HASHES": lambda inputs: ",".join(_ca_hash_list(inputs)),
    "CLUSTER_CA": lambda inputs: inputs.options.cluster.ca_bundle,
    "CLUSTER_NAME": lambda inputs: inputs.options.cluster.name,
    "CLUSTER_DNS": lambda inputs: ",".join(inputs.arguments.cluster_dns),
    "SERVICE_CIDR": lambda inputs: inputs.options.cluster.service_cidr,
    "KUBERNETES_VERSION": lambda inputs: inputs.options.cluster.version,
    "KUBERNETES_VERSION_FULL": lambda inputs: inputs.options.cluster.full_version or None,
    "NODECLAIM": lambda inputs: inputs.join.claim,
    "NODEPOOL": lambda inputs: inputs.join.pool,
    "NODECLASS": lambda inputs: inputs.join.node_class,
    "CAPACITY_TYPE": lambda inputs: inputs.options.labels.get(labels.CAPACITY_TYPE, ""),
    "NODE_LABELS": _node_labels,
    "NODE_TAINTS": lambda inputs: ",".join(taints.taint_text(taint) for taint in inputs.arguments.taints),
    "MAX_PODS": lambda inputs: str(inputs.arguments.max_pods),
    "KUBELET_EXTRA_ARGS": lambda inputs: kubelet_extra_args(inputs.arguments),
    "KUBELET_CONFIG": _kubelet_document,
    "JOIN_CONFIG": _join_document,
    "PROVIDER_ID_SH": lambda inputs: join_configuration.provider_id(inputs.join.node_name_source),
}
_TOKEN_VARIABLES = frozenset({"BOOTSTRAP_TOKEN", "BOOTSTRAP_TOKEN_SH", "JOIN_CONFIG"})
#: Names the snippets set on the instance; they resemble variables and are none.
_KEPT_NAMES = frozenset({*_VARIABLES, "PROVIDER_ID", "NODE_NAME"})
#: The names of all variables, sorted.
VARIABLE_NAMES = tuple(sorted(_VARIABLES))
