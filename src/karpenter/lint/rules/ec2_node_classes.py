"""Rules about EC2NodeClasses: what selectors find, what pods reach, which image is taken, how many pods a node holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from karpenter.api.ec2_node_class import EC2NodeClass, SecurityGroupSelectorTerm, SubnetSelectorTerm
from karpenter.api.karpenter import NodePool
from karpenter.instancetypes import ec2_capacity, ec2_packaged_types
from karpenter.instancetypes.type_sets import members
from karpenter.lint.lint_input import LintInput, PoolOffer
from karpenter.lint.rule import Match, Rule, Severity, Topic
from karpenter.lint.rules.reported_findings import advice, matched

_Term = SubnetSelectorTerm | SecurityGroupSelectorTerm
_EC2 = "EC2NodeClass"
_CLUSTER_TAG = "kubernetes.io/cluster/"
_LATEST = "@latest"
_OLD_VOLUME_TYPES = frozenset({"gp2", "io1", "standard"})
#: What access keys, private keys and passwords look like. AWS documents the prefixes of access keys.
_SECRET = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|-----BEGIN [A-Z ]*PRIVATE KEY-----|"
    r"\b(?:AWS_SECRET_ACCESS_KEY|PASSWORD|API_TOKEN)\s*=\s*[\"']?[^\s\"'$<{]",
    re.IGNORECASE,
)
_SHOWN = 3


def _matches_all(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        lists: tuple[tuple[str, Sequence[_Term]], ...] = (
            ("subnetSelectorTerms", node_class.spec.subnet_selector_terms),
            ("securityGroupSelectorTerms", node_class.spec.security_group_selector_terms),
        )
        for name, terms in lists:
            for index, term in enumerate(terms):
                if _is_open(term.tags) and term.id is None:
                    text = f"{_tags_text(term.tags)} selects all that have such a tag, those of other clusters, too"
                    yield Match(where, f"spec.{name}[{index}]", text)


def _is_open(tags: Mapping[str, str]) -> bool:
    return bool(tags) and all(value in ("*", "") and not key.startswith(_CLUSTER_TAG) for key, value in tags.items())


def _tags_text(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}: {value!r}" for key, value in tags.items())


# -- instance metadata, public addresses, secrets --------------------------------------------------------------------------


def _reachable_metadata(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        options = node_class.spec.metadata_options
        path = "spec.metadataOptions.httpPutResponseHopLimit"
        if options is None or options.http_endpoint == "disabled":
            continue
        if options.http_put_response_hop_limit is None:
            yield Match(where, path, "is missing: the default of the account or image holds, which may be 2; write 1")
        elif options.http_put_response_hop_limit > 1:
            text = f"with {options.http_put_response_hop_limit} hops every pod reaches the credentials of the node; write 1"
            yield Match(where, path, text)


def _old_metadata(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        options = node_class.spec.metadata_options
        if options is not None and options.http_tokens == "optional" and options.http_endpoint != "disabled":
            text = "answers requests without a session token (IMDSv1), which a forged request gets through a proxy"
            yield Match(where, "spec.metadataOptions.httpTokens", text)


def _public_address(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        if node_class.spec.associate_public_ip_address:
            yield Match(
                where, "spec.associatePublicIPAddress", "every node has a public address, and AWS charges for each"
            )


def _secret(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        user_data = node_class.spec.user_data or ""
        match = _SECRET.search(user_data)
        if match is not None:
            text = "looks like a secret: everybody who may read the class or the instance's attributes reads it"
            yield Match(where, "spec.userData", f"line {user_data.count(chr(10), 0, match.start()) + 1} {text}")


# -- images and volumes ----------------------------------------------------------------------------------------------------


def _latest_image(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        for index, term in enumerate(node_class.spec.ami_selector_terms):
            if term.alias is not None and term.alias.endswith(_LATEST):
                text = f"{term.alias}: each release of the image makes all nodes drift, untested; pin a version"
                yield Match(where, f"spec.amiSelectorTerms[{index}].alias", text)


def _image_pattern(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        for index, term in enumerate(node_class.spec.ami_selector_terms):
            if term.name is not None and "*" in term.name and term.owner is None:
                text = f"{term.name!r} takes the newest image of that name from this account or Amazon; name the owner or the id"
                yield Match(where, f"spec.amiSelectorTerms[{index}].name", text)


def _unencrypted(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        for index, mapping in enumerate(node_class.spec.block_device_mappings):
            if mapping.ebs is not None and not mapping.ebs.encrypted:
                text = "is not encrypted, unless the account encrypts volumes by default; write encrypted: true"
                yield Match(where, f"spec.blockDeviceMappings[{index}].ebs", text)


def _old_volume_type(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        for index, mapping in enumerate(node_class.spec.block_device_mappings):
            if mapping.ebs is not None and mapping.ebs.volume_type in _OLD_VOLUME_TYPES:
                text = (
                    f"{mapping.ebs.volume_type} is of an older generation: gp3 or io2 cost less for the same throughput"
                )
                yield Match(where, f"spec.blockDeviceMappings[{index}].ebs.volumeType", text)


# -- pods per node ---------------------------------------------------------------------------------------------------------


def _pods_beyond_addresses(lint_input: LintInput) -> Iterator[Match]:
    for where, node_class in lint_input.of_type(EC2NodeClass):
        wanted = node_class.spec.kubelet.get("maxPods")
        if not isinstance(wanted, int) or node_class.spec.ip_prefix_count:
            continue
        short = sorted(
            {name for offer in _offers_of(node_class, lint_input) for name in _short_of_addresses(offer, wanted)}
        )
        if short:
            more = f" and {len(short) - _SHOWN} more types" if len(short) > _SHOWN else ""
            text = (
                f"{wanted} pods need more addresses than the interfaces of {', '.join(short[:_SHOWN])}{more} have, unless the "
                "VPC CNI delegates prefixes: such pods stay in ContainerCreating"
            )
            yield Match(where, "spec.kubelet.maxPods", text)


def _offers_of(node_class: EC2NodeClass, lint_input: LintInput) -> Iterator[PoolOffer]:
    for offer in lint_input.offers.values():
        reference = offer.pool.spec.template.spec.node_class_ref
        if reference.kind == _EC2 and reference.name == node_class.metadata.name:
            yield offer


def _short_of_addresses(offer: PoolOffer, wanted: int) -> Iterator[str]:
    template = offer.template
    for position in members(template.types) if template is not None else ():
        name = offer.index.types[position].name
        if ec2_packaged_types.find_packaged_type(name) is not None:
            shape = ec2_packaged_types.packaged_shape(name)
            if ec2_capacity.max_pods(shape.interfaces, shape.ipv4_per_interface) < wanted:
                yield name


# -- wrapped advice, unused classes ----------------------------------------------------------------------------------------


def _ignored_fields(lint_input: LintInput) -> Iterator[Match]:
    return _advised(lint_input, "exclusive")


def _malformed_id(lint_input: LintInput) -> Iterator[Match]:
    return _advised(lint_input, "pattern")


def _advised(lint_input: LintInput, code: str) -> Iterator[Match]:
    for where, obj, finding in advice(lint_input):
        if isinstance(obj, EC2NodeClass) and finding.code == code:
            yield matched(where, finding)


def _unused(lint_input: LintInput) -> Iterator[Match]:
    references = [pool.spec.template.spec.node_class_ref for _, pool in lint_input.of_type(NodePool)]
    used = {reference.name for reference in references if reference.kind == _EC2}
    for where, node_class in lint_input.of_type(EC2NodeClass):
        if references and node_class.metadata.name not in used:
            yield Match(where, "metadata.name", "no NodePool of the input uses this class")


RULES = (
    Rule(
        "KL301",
        "selector-matches-all",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "A selector of subnets or security groups by tags with any value.",
        "Nodes get into subnets and security groups of other clusters of the account.",
        "Select by `karpenter.sh/discovery: CLUSTER`, or by id.",
        _matches_all,
    ),
    Rule(
        "KL302",
        "metadata-reachable-from-pods",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "A hop limit of the instance metadata service above 1, or none.",
        "Every pod can take the credentials of the node's role.",
        "Write `httpPutResponseHopLimit: 1`; give pods roles of their own.",
        _reachable_metadata,
    ),
    Rule(
        "KL303",
        "metadata-without-token",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "`httpTokens: optional`.",
        "IMDSv1 answers forged requests, such as those a web server passes on.",
        "Write `httpTokens: required`.",
        _old_metadata,
    ),
    Rule(
        "KL304",
        "latest-image",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "An alias that ends in `@latest`.",
        "A new release replaces all nodes by drift, in all clusters at the same time, before anybody has tested it.",
        "Pin the version: `al2023@v20260903`. Raise it first where it may fail.",
        _latest_image,
    ),
    Rule(
        "KL305",
        "image-by-pattern",
        Severity.NOTE,
        Topic.NODE_CLASSES,
        "An image selected by a pattern of its name, without an owner.",
        "The newest image wins: nodes drift whenever one is published.",
        "Name the owner, or select by id or tag.",
        _image_pattern,
    ),
    Rule(
        "KL306",
        "max-pods-beyond-addresses",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "`kubelet.maxPods` above the addresses that instance types of the class's NodePools have for pods.",
        "Pods are placed on nodes that have no address for them.",
        "Leave `maxPods` out, delegate prefixes, or ask for larger types.",
        _pods_beyond_addresses,
    ),
    Rule(
        "KL307",
        "unencrypted-volume",
        Severity.NOTE,
        Topic.NODE_CLASSES,
        "A volume without `encrypted: true`.",
        "Images, logs and `emptyDir` volumes lie on it unencrypted.",
        "Write `encrypted: true`.",
        _unencrypted,
    ),
    Rule(
        "KL308",
        "old-volume-type",
        Severity.NOTE,
        Topic.NODE_CLASSES,
        "A volume of type gp2, io1 or standard.",
        "Its throughput depends on its size, and it costs more.",
        "Write `gp3`, or `io2` instead of io1.",
        _old_volume_type,
    ),
    Rule(
        "KL309",
        "ignored-selector-fields",
        Severity.WARNING,
        Topic.NODE_CLASSES,
        "A selector term with fields beside one that decides alone.",
        "The other fields have no effect.",
        "Take them away, or make two terms.",
        _ignored_fields,
    ),
    Rule(
        "KL310",
        "malformed-id",
        Severity.ERROR,
        Topic.NODE_CLASSES,
        "A selector term whose id is none.",
        "It selects nothing.",
        "Correct the id.",
        _malformed_id,
    ),
    Rule(
        "KL311",
        "public-addresses",
        Severity.NOTE,
        Topic.NODE_CLASSES,
        "`associatePublicIPAddress: true`.",
        "Nodes can be reached from outside where security groups allow it, and each address is charged.",
        "Use private subnets with a NAT gateway or endpoints.",
        _public_address,
    ),
    Rule(
        "KL312",
        "secret-in-user-data",
        Severity.ERROR,
        Topic.NODE_CLASSES,
        "User data that contains an access key, a private key or a password.",
        "User data is not secret: it is in the object, in the launch template and on every node.",
        "Let the node fetch it with its role, for example from Secrets Manager.",
        _secret,
    ),
    Rule(
        "KL313",
        "unused-node-class",
        Severity.NOTE,
        Topic.NODE_CLASSES,
        "An EC2NodeClass that no NodePool of the input uses.",
        "It is left over, or a NodePool names another class than meant.",
        "Delete it, or correct `nodeClassRef`.",
        _unused,
    ),
)
