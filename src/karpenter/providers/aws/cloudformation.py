"""What must stand around a controller on EKS, as one CloudFormation stack (AWS §§16.2, 16.3).

The node role and its entry into the cluster, the controller's role with its policies, the interruption queue and the rules that
feed it. Made from the same statements as ``iam-policy``, so a stack of this version fits a controller of this version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from karpenter.providers.aws import iam_policies
from karpenter.providers.aws.aws_partitions import partition_by_id
from karpenter.providers.aws.iam_policies import ClusterLocation

Json = Mapping[str, object]

#: Target id of every rule (AWS-731).
_TARGET = "KarpenterInterruptionQueueTarget"
#: What the queue hears of: source and detail type (AWS-731).
EVENT_RULES = {
    "HealthEvents": ("aws.health", "AWS Health Event"),
    "SpotInterruptions": ("aws.ec2", "EC2 Spot Instance Interruption Warning"),
    "RebalanceRecommendations": ("aws.ec2", "EC2 Instance Rebalance Recommendation"),
    "StateChanges": ("aws.ec2", "EC2 Instance State-change Notification"),
    "ReservationInterruptions": ("aws.ec2", "EC2 Capacity Reservation Instance Interruption Warning"),
}
_RETENTION_SECONDS = 300
_HAS_ACCESS_ENTRIES = "HasAccessEntries"
_AUTHENTICATION_MODE = {
    "Type": "String",
    "Default": "API_AND_CONFIG_MAP",
    "AllowedValues": ["API", "API_AND_CONFIG_MAP", "CONFIG_MAP"],
    "Description": "Authentication mode of the cluster: aws eks describe-cluster --query cluster.accessConfig",
}


@dataclass(frozen=True)
class ControllerServiceAccount:
    """Whom the controller's role is for (AWS-732)."""

    namespace: str = "kube-system"
    name: str = "karpenter"


def cloudformation_template(
    location: ClusterLocation, service_account: ControllerServiceAccount = ControllerServiceAccount()
) -> Json:
    """The stack. Everything is named in it.

    Its one parameter is the cluster's authentication mode: EKS refuses access entries where that is CONFIG_MAP, so the stack has
    none there, and the node role belongs into ConfigMap ``aws-auth`` (AWS-726).
    """
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Karpenter on the EKS cluster {location.cluster}",
        "Parameters": {"AuthenticationMode": _AUTHENTICATION_MODE},
        "Conditions": {
            _HAS_ACCESS_ENTRIES: {"Fn::Not": [{"Fn::Equals": [{"Ref": "AuthenticationMode"}, "CONFIG_MAP"]}]}
        },
        "Resources": {
            "NodeRole": _node_role(location),
            "NodeAccess": _resource(
                "AWS::EKS::AccessEntry",
                _node_access(location),
                DependsOn="NodeRole",
                Condition=_HAS_ACCESS_ENTRIES,
            ),
            **_controller(location, service_account),
            "InterruptionQueue": _queue(location),
            "InterruptionQueuePolicy": _queue_policy(location),
            **{f"Rule{name}": _event_rule(source, detail) for name, (source, detail) in EVENT_RULES.items()},
        },
    }


def _resource(kind: str, properties: Json, **more: object) -> Json:
    return {"Type": kind, **more, "Properties": properties}


def _trust(principal: Json, *actions: str) -> Json:
    statement = {"Effect": "Allow", "Principal": principal, "Action": list(actions)}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _node_role(location: ClusterLocation) -> Json:
    ec2 = partition_by_id(location.partition).ec2_principal
    managed = [f"arn:{location.partition}:iam::aws:policy/{name}" for name in iam_policies.NODE_POLICIES]
    properties = {
        "RoleName": location.node_role_name,
        "AssumeRolePolicyDocument": _trust({"Service": ec2}, "sts:AssumeRole"),
        "ManagedPolicyArns": managed,
    }
    return _resource("AWS::IAM::Role", properties)


def _node_access(location: ClusterLocation) -> Json:
    role = location.arn("iam", f"role/{location.node_role_name}", region="")
    return {"ClusterName": location.cluster, "PrincipalArn": role, "Type": "EC2_LINUX"}


def _controller(location: ClusterLocation, service_account: ControllerServiceAccount) -> dict[str, Json]:
    policies = {
        f"Policy{policy.part}": _managed_policy(location, policy)
        for policy in iam_policies.controller_policies(location)
    }
    role = {
        "RoleName": f"KarpenterController-{location.cluster}",
        "AssumeRolePolicyDocument": _trust({"Service": "pods.eks.amazonaws.com"}, "sts:AssumeRole", "sts:TagSession"),
        "ManagedPolicyArns": [{"Ref": name} for name in policies],
    }
    identity = {
        "ClusterName": location.cluster,
        "Namespace": service_account.namespace,
        "ServiceAccount": service_account.name,
        "RoleArn": {"Fn::GetAtt": ["ControllerRole", "Arn"]},
    }
    return {
        **policies,
        "ControllerRole": _resource("AWS::IAM::Role", role),
        "ControllerIdentity": _resource("AWS::EKS::PodIdentityAssociation", identity),
    }


def _managed_policy(location: ClusterLocation, policy: iam_policies.IamPolicy) -> Json:
    properties = {
        "ManagedPolicyName": iam_policies.policy_name(policy.part, location.cluster),
        "PolicyDocument": iam_policies.policy_document(policy.statements),
    }
    return _resource("AWS::IAM::ManagedPolicy", properties)


def _queue(location: ClusterLocation) -> Json:
    """The interruption queue (AWS-730)."""
    properties = {
        "QueueName": location.queue_name,
        "MessageRetentionPeriod": _RETENTION_SECONDS,
        "SqsManagedSseEnabled": True,
    }
    return _resource("AWS::SQS::Queue", properties)


def _queue_policy(place: ClusterLocation) -> Json:
    arn = {"Fn::GetAtt": ["InterruptionQueue", "Arn"]}
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
    properties = {"Queues": [{"Ref": "InterruptionQueue"}], "PolicyDocument": document}
    return _resource("AWS::SQS::QueuePolicy", properties)


def _event_rule(source: str, detail_type: str) -> Json:
    target = {"Id": _TARGET, "Arn": {"Fn::GetAtt": ["InterruptionQueue", "Arn"]}}
    properties = {"EventPattern": {"source": [source], "detail-type": [detail_type]}, "Targets": [target]}
    return _resource("AWS::Events::Rule", properties)
