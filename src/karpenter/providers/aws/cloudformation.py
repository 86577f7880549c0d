"""What must stand around a controller, as one CloudFormation stack (AWS §§16.2, 16.3).

The node role and its entry into the cluster, the controller's role with its policies, the interruption queue and the rules that
feed it. A self-managed cluster (AWS-941) has neither access entries nor pod identities: there the controller's role is for the
instances that it runs on, with an instance profile. Made from the same statements as ``iam-policy``, so a stack of this version
fits a controller of this version.

Resources have the logical IDs of the stack that Karpenter's guide makes. Names in an account are unique, and both stacks need the
same ones: deployed under the name of that stack, this template updates its resources in place instead of colliding with them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.aws_partitions import partition_by_id
from karpenter.providers.aws.bootstrap.bootstrap_settings import BootstrapMode
from karpenter.providers.aws.iam_policies import ClusterLocation

Json = Mapping[str, object]

#: Target id of every rule (AWS-731).
_TARGET = "KarpenterInterruptionQueueTarget"
_QUEUE = "KarpenterInterruptionQueue"
_NODE_ROLE = "KarpenterNodeRole"
_CONTROLLER_ROLE = "KarpenterControllerRole"
#: What feeds the queue, by logical ID: source and detail type (AWS-731).
EVENT_RULES = {
    "ScheduledChangeRule": ("aws.health", "AWS Health Event"),
    "SpotInterruptionRule": ("aws.ec2", "EC2 Spot Instance Interruption Warning"),
    "RebalanceRule": ("aws.ec2", "EC2 Instance Rebalance Recommendation"),
    "InstanceStateChangeRule": ("aws.ec2", "EC2 Instance State-change Notification"),
    "CapacityReservationInterruptionRule": ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
}
_RETENTION_SECONDS = 300
_FORMAT = "2010-09-09"
_CREATES_ACCESS_ENTRY = "CreatesAccessEntry"
_CREATES_CONTROLLER_ROLE = "CreatesControllerRole"
_EKS_PARAMETERS = {
    "AuthenticationMode": {
        "Type": "String",
        "Default": "API_AND_CONFIG_MAP",
        "AllowedValues": ["API", "API_AND_CONFIG_MAP", "CONFIG_MAP"],
        "Description": "Authentication mode of the cluster: aws eks describe-cluster --query cluster.accessConfig",
    },
    "NodeAccess": {
        "Type": "String",
        "Default": "create",
        "AllowedValues": ["create", "exists"],
        "Description": "exists: the cluster knows the node role already, by an access entry or aws-auth",
    },
    "ControllerRole": {
        "Type": "String",
        "Default": "",
        "Description": "Name of the role that the controller has already; empty: make one, with a pod identity",
    },
}
_SELF_MANAGED_PARAMETERS = {
    "ControllerRole": {
        "Type": "String",
        "Default": "",
        "Description": "Name of the role that the controller has already; empty: make one, with an instance profile",
    },
}
_CONTROLLER_ROLE_CONDITION = {_CREATES_CONTROLLER_ROLE: {"Fn::Equals": [{"Ref": "ControllerRole"}, ""]}}
_EKS_CONDITIONS = {
    _CREATES_ACCESS_ENTRY: {
        "Fn::And": [
            {"Fn::Not": [{"Fn::Equals": [{"Ref": "AuthenticationMode"}, "CONFIG_MAP"]}]},
            {"Fn::Equals": [{"Ref": "NodeAccess"}, "create"]},
        ]
    },
    **_CONTROLLER_ROLE_CONDITION,
}


@dataclass(frozen=True)
class ControllerServiceAccount:
    """The ServiceAccount that assumes the controller's role (AWS-732)."""

    namespace: str = "kube-system"
    name: str = "karpenter"


def cloudformation_template(
    location: ClusterLocation, service_account: ControllerServiceAccount = ControllerServiceAccount()
) -> Json:
    """The stack. Everything is named in it.

    Parameter ``AuthenticationMode`` is the cluster's: EKS refuses access entries where it is CONFIG_MAP, so the stack has none
    there, and the node role belongs into ConfigMap ``aws-auth`` (AWS-726). ``NodeAccess`` and ``ControllerRole`` keep what
    stands already: EKS allows one access entry for a role, and one pod identity for a ServiceAccount.

    For a self-managed cluster the stack has nothing of EKS, and ``service_account`` does not matter.
    """
    if location.bootstrap_mode is BootstrapMode.KUBEADM:
        return _self_managed_template(location)
    access_entry = _resource(
        "AWS::EKS::AccessEntry", _node_access(location), DependsOn=_NODE_ROLE, Condition=_CREATES_ACCESS_ENTRY
    )
    return {
        "AWSTemplateFormatVersion": _FORMAT,
        "Description": f"Karpenter on the EKS cluster {location.cluster}",
        "Parameters": _EKS_PARAMETERS,
        "Conditions": _EKS_CONDITIONS,
        "Resources": {
            _NODE_ROLE: _node_role(location),
            "NodeAccessEntry": access_entry,
            **_controller_policies(location),
            **_pod_identity_role(location, service_account),
            **_interruption_queue(location),
        },
    }


def _self_managed_template(location: ClusterLocation) -> Json:
    return {
        "AWSTemplateFormatVersion": _FORMAT,
        "Description": f"Karpenter on the self-managed cluster {location.cluster}",
        "Parameters": _SELF_MANAGED_PARAMETERS,
        "Conditions": _CONTROLLER_ROLE_CONDITION,
        "Resources": {
            _NODE_ROLE: _node_role(location),
            **_controller_policies(location),
            **_instance_role(location),
            **_interruption_queue(location),
        },
    }


def _resource(kind: str, properties: Json, **more: object) -> Json:
    return {"Type": kind, **more, "Properties": properties}


def _trust(principal: Json, *actions: str) -> Json:
    statement = {"Effect": "Allow", "Principal": principal, "Action": list(actions)}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _node_role(location: ClusterLocation) -> Json:
    ec2 = partition_by_id(location.partition).ec2_principal
    names = iam_policies.node_policies(location.bootstrap_mode)
    managed = [f"arn:{location.partition}:iam::aws:policy/{name}" for name in names]
    properties = {
        "RoleName": location.node_role_name,
        "AssumeRolePolicyDocument": _trust({"Service": ec2}, "sts:AssumeRole"),
        "ManagedPolicyArns": managed,
    }
    return _resource("AWS::IAM::Role", properties)


def _node_access(location: ClusterLocation) -> Json:
    role = location.arn("iam", f"role/{location.node_role_name}", region="")
    return {"ClusterName": location.cluster, "PrincipalArn": role, "Type": "EC2_LINUX"}


def _controller_policies(location: ClusterLocation) -> dict[str, Json]:
    return {
        f"KarpenterController{policy.part}Policy": _managed_policy(location, policy)
        for policy in iam_policies.controller_policies(location)
    }


def _pod_identity_role(location: ClusterLocation, service_account: ControllerServiceAccount) -> dict[str, Json]:
    """The controller's role for its ServiceAccount."""
    identity = {
        "ClusterName": location.cluster,
        "Namespace": service_account.namespace,
        "ServiceAccount": service_account.name,
        "RoleArn": {"Fn::GetAtt": [_CONTROLLER_ROLE, "Arn"]},
    }
    trust = _trust({"Service": "pods.eks.amazonaws.com"}, "sts:AssumeRole", "sts:TagSession")
    return {
        _CONTROLLER_ROLE: _controller_role(location, trust),
        "KarpenterControllerIdentity": _resource(
            "AWS::EKS::PodIdentityAssociation", identity, Condition=_CREATES_CONTROLLER_ROLE
        ),
    }


def _instance_role(location: ClusterLocation) -> dict[str, Json]:
    """The controller's role for instances, as those of a control plane, and the profile that brings it there."""
    ec2 = partition_by_id(location.partition).ec2_principal
    profile = {"InstanceProfileName": _controller_role_name(location), "Roles": [{"Ref": _CONTROLLER_ROLE}]}
    return {
        _CONTROLLER_ROLE: _controller_role(location, _trust({"Service": ec2}, "sts:AssumeRole")),
        "KarpenterControllerInstanceProfile": _resource(
            "AWS::IAM::InstanceProfile", profile, Condition=_CREATES_CONTROLLER_ROLE
        ),
    }


def _controller_role(location: ClusterLocation, trust: Json) -> Json:
    role = {"RoleName": _controller_role_name(location), "AssumeRolePolicyDocument": trust}
    return _resource("AWS::IAM::Role", role, Condition=_CREATES_CONTROLLER_ROLE)


def _controller_role_name(location: ClusterLocation) -> str:
    return f"KarpenterController-{location.cluster}"


def _managed_policy(location: ClusterLocation, policy: iam_policies.IamPolicy) -> Json:
    created, existing = {"Ref": _CONTROLLER_ROLE}, {"Ref": "ControllerRole"}
    properties = {
        "ManagedPolicyName": iam_policies.policy_name(policy.part, location.cluster),
        "PolicyDocument": iam_policies.policy_document(policy.statements),
        "Roles": [{"Fn::If": [_CREATES_CONTROLLER_ROLE, created, existing]}],
    }
    return _resource("AWS::IAM::ManagedPolicy", properties)


def _interruption_queue(location: ClusterLocation) -> dict[str, Json]:
    """The queue, its access policy, and the event rules that send to it."""
    return {
        _QUEUE: _queue(location),
        "KarpenterInterruptionQueuePolicy": _queue_policy(location),
        **{name: _event_rule(source, detail) for name, (source, detail) in EVENT_RULES.items()},
    }


def _queue(location: ClusterLocation) -> Json:
    """The interruption queue (AWS-730)."""
    properties = {
        "QueueName": location.queue_name,
        "MessageRetentionPeriod": _RETENTION_SECONDS,
        "SqsManagedSseEnabled": True,
    }
    return _resource("AWS::SQS::Queue", properties)


def _queue_policy(place: ClusterLocation) -> Json:
    arn = {"Fn::GetAtt": [_QUEUE, "Arn"]}
    send = {
        "Sid": "EventsAreSent",
        "Effect": "Allow",
        "Principal": {"Service": ["events.amazonaws.com", "sqs.amazonaws.com"]},
        "Action": "sqs:SendMessage",
        "Resource": arn,
    }
    encrypted = {
        "Sid": "NothingInTheClear",
        "Effect": "Deny",
        "Principal": "*",
        "Action": "sqs:*",
        "Resource": arn,
        "Condition": {"Bool": {"aws:SecureTransport": "false"}},
    }
    document = {"Version": "2012-10-17", "Statement": [send, encrypted]}
    properties = {"Queues": [{"Ref": _QUEUE}], "PolicyDocument": document}
    return _resource("AWS::SQS::QueuePolicy", properties)


def _event_rule(source: str, detail_type: str) -> Json:
    target = {"Id": _TARGET, "Arn": {"Fn::GetAtt": [_QUEUE, "Arn"]}}
    properties = {"EventPattern": {"source": [source], "detail-type": [detail_type]}, "Targets": [target]}
    return _resource("AWS::Events::Rule", properties)
