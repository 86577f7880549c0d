"""Variables in user data, and the JoinConfiguration among them."""

from __future__ import annotations

import gzip
import hashlib
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given as over
from hypothesis import strategies as st

from karpenter.providers.aws.bootstrap.bootstrap_token import JoinParameters
from karpenter.providers.aws.userdata import UserDataError, render_user_data
from karpenter.providers.aws.userdata.join_configuration import (
    VARIABLE_NAMES,
    lookalikes,
    names_claim,
    template_names,
    wants_token,
)
from support.kubeadm_user_data import FIELD_REPORT, TOKEN, authority, cluster, joining, rendered

CA, OTHER_CA = authority("first"), authority("second")
CLUSTER = cluster(CA)


def _hash(pem: bytes) -> str:
    key = x509.load_pem_x509_certificate(pem).public_key()
    return hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()


def test_variables_in_the_user_data_of_the_field_report_are_replaced_and_other_names_stay() -> None:
    """AWS-T900: the three names of the report are replaced; ``${HOME}`` and ``$(hostname)`` stay."""
    text = rendered(FIELD_REPORT, CLUSTER)
    match = re.search(r"kubeadm join (\S+):6443 --token (\S+) \\\n.*sha256:([0-9a-f]{64})\n", text)
    assert match is not None
    assert match.groups() == ("10.0.0.10", TOKEN.value, _hash(CA))
    assert "HOST=$(hostname)\n" in text
    assert '"${HOME} ${HOST}"' in text


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        pytest.param("https://10.0.0.10:6443", "10.0.0.10 6443 10.0.0.10:6443", id="AWS-T909"),
        pytest.param("https://api.example", "api.example 443 api.example:443", id="AWS-T909: port of https"),
        pytest.param("https://[fd00::1]:6443", "[fd00::1] 6443 [fd00::1]:6443", id="an IPv6 address"),
    ],
)
def test_the_endpoint_has_variables_for_its_parts(endpoint: str, expected: str) -> None:
    """AWS-T909."""
    text = "${CLUSTER_ENDPOINT} ${CLUSTER_ENDPOINT_PORT} ${CLUSTER_ENDPOINT_HOSTPORT} ${CLUSTER_ENDPOINT_URL}"
    assert rendered(text, cluster(CA, endpoint=endpoint)) == f"{expected} {endpoint}"


def test_two_dollar_signs_escape_a_variable() -> None:
    """AWS-T910, and names that are no variables keep their dollars."""
    text = "$${BOOTSTRAP_TOKEN} $${HOME} $$${NODEPOOL} $NODEPOOL ${nodepool} ${NODEPOOL:-x}"
    assert rendered(text, CLUSTER) == "${BOOTSTRAP_TOKEN} $${HOME} $${NODEPOOL} $NODEPOOL ${nodepool} ${NODEPOOL:-x}"


def test_values_are_not_expanded_again() -> None:
    """AWS-920: the value of a label cannot inject a variable."""
    of = cluster(CA, endpoint="https://x")
    join = JoinParameters(claim="${BOOTSTRAP_TOKEN}", token=TOKEN)
    assert rendered("${NODECLAIM}", of, join) == "${BOOTSTRAP_TOKEN}"


@over(st.text(alphabet="${}ABOTSRAP_KEN$ \n'\"", max_size=60))
def test_text_without_a_known_variable_stays_unchanged(text: str) -> None:
    """AWS-920."""
    if not re.search("|".join(VARIABLE_NAMES), text):
        assert rendered(text, CLUSTER) == text


def test_every_variable_has_a_value_or_stays() -> None:
    """AWS-920: the whole table."""
    simple = [name for name in VARIABLE_NAMES if not name.endswith(("_SH", "_CONFIG"))]
    values = dict(zip(simple, rendered("|".join(f"${{{name}}}" for name in simple), CLUSTER).split("|"), strict=True))
    assert values == {
        "BOOTSTRAP_TOKEN": TOKEN.value,
        "CA_CERT_HASH": _hash(CA),
        "CA_CERT_HASHES": f"sha256:{_hash(CA)}",
        "CAPACITY_TYPE": "spot",
        "CLUSTER_CA": CLUSTER.ca_bundle,
        "CLUSTER_DNS": "10.96.0.10",
        "CLUSTER_ENDPOINT": "10.0.0.10",
        "CLUSTER_ENDPOINT_HOSTPORT": "10.0.0.10:6443",
        "CLUSTER_ENDPOINT_PORT": "6443",
        "CLUSTER_ENDPOINT_URL": "https://10.0.0.10:6443",
        "CLUSTER_NAME": "prod",
        "KUBELET_EXTRA_ARGS": '--node-labels="karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,team=a" '
        '--register-with-taints="dedicated=gpu:NoSchedule,karpenter.sh/unregistered:NoExecute" --max-pods=58',
        "KUBERNETES_VERSION": "1.33",
        "KUBERNETES_VERSION_FULL": "1.33.2",
        "MAX_PODS": "58",
        "NODECLAIM": "web-1",
        "NODECLASS": "default",
        "NODEPOOL": "web",
        "NODE_LABELS": "karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,team=a",
        "NODE_TAINTS": "dedicated=gpu:NoSchedule,karpenter.sh/unregistered:NoExecute",
        "SERVICE_CIDR": "10.96.0.0/12",
    }


def test_a_bundle_of_two_authorities_has_two_hashes() -> None:
    """AWS-921: the first alone, and all with their prefix."""
    both = cluster(CA, OTHER_CA)
    assert rendered("${CA_CERT_HASH}", both) == _hash(CA)
    assert rendered("${CA_CERT_HASHES}", both) == f"sha256:{_hash(CA)},sha256:{_hash(OTHER_CA)}"


def test_a_hash_variable_without_a_ca_bundle_is_an_error_that_names_the_setting() -> None:
    """AWS-921: the instance could not verify its cluster."""
    with pytest.raises(UserDataError, match="--cluster-ca-bundle"):
        rendered("${CA_CERT_HASH}", cluster())
    assert rendered("no hash", cluster()) == "no hash"


def test_misspelled_variables_are_found() -> None:
    """AWS-922: an edit distance of two at most; variables of the shell are ignored."""
    text = "${BOOTSTRAP_TOKN} ${CLUSTER_ENDPIONT} ${HOME} ${PROVIDER_ID} ${NODE_NAME} ${CLUSTER_CA} $${NODEPOL}"
    assert lookalikes(text) == {"BOOTSTRAP_TOKN": "BOOTSTRAP_TOKEN", "CLUSTER_ENDPIONT": "CLUSTER_ENDPOINT"}


def test_only_user_data_with_a_token_variable_needs_a_token() -> None:
    """AWS-923."""
    assert wants_token(FIELD_REPORT)
    assert wants_token("${JOIN_CONFIG}")
    assert not wants_token("${CLUSTER_ENDPOINT} $${BOOTSTRAP_TOKEN}")
    assert template_names("${NODEPOOL} $${NODECLAIM}") == {"NODEPOOL"}
    assert names_claim("${NODECLAIM}")
    assert not names_claim("$${NODECLAIM}")


def test_without_a_token_its_variables_stay() -> None:
    """AWS-918: instances that join in other ways may use the same names."""
    text = "${BOOTSTRAP_TOKEN} ${JOIN_CONFIG} ${BOOTSTRAP_TOKEN_SH} ${NODEPOOL}"
    expected = "${BOOTSTRAP_TOKEN} ${JOIN_CONFIG} ${BOOTSTRAP_TOKEN_SH} web"
    assert rendered(text, CLUSTER, JoinParameters(pool="web")) == expected


@pytest.mark.parametrize(("version", "api"), [("1.30", "v1beta3"), ("1.31", "v1beta4"), ("1.36", "v1beta4")])
def test_the_join_configuration_is_of_the_version_that_kubeadm_reads(version: str, api: str) -> None:
    """AWS-T911: v1beta3 has a map of arguments, v1beta4 a list."""
    text = rendered("${JOIN_CONFIG}", cluster(CA, version=version), maxPods=40, evictionHard={"memory.available": "5%"})
    document = yaml.safe_load(text)
    arguments = {
        "eviction-hard": "memory.available<5%",
        "max-pods": "40",
        "node-labels": "karpenter.sh/capacity-type=spot,karpenter.sh/do-not-sync-taints=true,team=a",
        "provider-id": "${PROVIDER_ID}",
    }
    as_list = [{"name": name, "value": value} for name, value in sorted(arguments.items())]
    assert document == {
        "apiVersion": f"kubeadm.k8s.io/{api}",
        "kind": "JoinConfiguration",
        "discovery": {
            "bootstrapToken": {
                "apiServerEndpoint": "10.0.0.10:6443",
                "token": TOKEN.value,
                "caCertHashes": [f"sha256:{_hash(CA)}"],
            },
            "tlsBootstrapToken": TOKEN.value,
        },
        "nodeRegistration": {
            "taints": [
                {"key": "dedicated", "value": "gpu", "effect": "NoSchedule"},
                {"key": "karpenter.sh/unregistered", "effect": "NoExecute"},
            ],
            "kubeletExtraArgs": arguments if api == "v1beta3" else as_list,
            "ignorePreflightErrors": [],
        },
    }


def test_the_kubelet_configuration_has_max_pods_and_taints() -> None:
    """AWS-920: KUBELET_CONFIG."""
    document = yaml.safe_load(rendered("${KUBELET_CONFIG}", CLUSTER, podsPerCore=4))
    assert (document["kind"], document["maxPods"], document["podsPerCore"]) == ("KubeletConfiguration", 58, 4)
    assert document["registerWithTaints"][-1] == {"key": "karpenter.sh/unregistered", "effect": "NoExecute"}


def test_with_a_parameter_user_data_has_no_token() -> None:
    """AWS-917: user data has the parameter's name; the script sets BOOTSTRAP_TOKEN."""
    join = JoinParameters(token=TOKEN, token_parameter="/karpenter/prod/web-1")
    text = rendered("${BOOTSTRAP_TOKEN_SH}\nkubeadm join --token ${BOOTSTRAP_TOKEN}\n${JOIN_CONFIG}", CLUSTER, join)
    assert TOKEN.secret not in text
    assert "--name /karpenter/prod/web-1 --with-decryption" in text
    assert "--token ${BOOTSTRAP_TOKEN}\n" in text
    assert "token: ${BOOTSTRAP_TOKEN}\n" in text


def test_compressed_user_data_is_the_same_text_and_the_same_bytes_each_time() -> None:
    """AWS-924."""
    join = JoinParameters(pool="web", is_compressed=True)
    first = render_user_data(joining("#!/bin/sh\necho ${NODEPOOL}", CLUSTER, join))
    assert gzip.decompress(first) == b"#!/bin/sh\necho web"
    assert first == render_user_data(joining("#!/bin/sh\necho ${NODEPOOL}", CLUSTER, join))


def test_the_minimal_script_of_the_documentation_writes_a_complete_configuration(tmp_path: Path) -> None:
    """AWS-926: a shell runs it with a fake metadata service; provider ID and name are in the file."""
    shell = shutil.which("sh")
    assert shell is not None
    target = tmp_path / "join.yaml"
    script = f"""#!/bin/sh
${{PROVIDER_ID_SH}}
cat >{target} <<'J'
${{JOIN_CONFIG}}
J
sed -i "s|\\${{PROVIDER_ID}}|$PROVIDER_ID|; s|\\${{NODE_NAME}}|$NODE_NAME|" {target}
"""
    (tmp_path / "curl").write_text(
        '#!/bin/sh\nfor last; do :; done\ncase "$last" in\n'
        "*instance-id) printf i-0abc;;\n*availability-zone) printf eu-west-1a;;\n*) printf token;;\nesac\n"
    )
    (tmp_path / "curl").chmod(0o755)
    join = JoinParameters(token=TOKEN, node_name_source="instance-id")
    text = rendered(script, CLUSTER, join)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    subprocess.run([shell, "-eu"], input=text, text=True, check=True, env=environment, timeout=30)
    document = yaml.safe_load(target.read_text())["nodeRegistration"]
    assert document["name"] == "i-0abc"
    assert {"name": "provider-id", "value": "aws:///eu-west-1a/i-0abc"} in document["kubeletExtraArgs"]
