"""One line for users about a failed API call: what happened, where, and how to fix it."""

from __future__ import annotations

import re

from karpenter.api.kinds import KWOK_NODE_CLASS, NODE_CLAIM, NODE_POOL
from karpenter.kube import errors

_FORBIDDEN = re.compile(
    r'User "(?P<user>[^"]*)" cannot (?P<verb>\S+) resource "(?P<resource>[^"]*)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]*)")?'
)

#: Groups whose kinds `karpenter crds` defines.
_KARPENTER_GROUPS = frozenset(kind.group for kind in (NODE_POOL, NODE_CLAIM, KWOK_NODE_CLASS))

_REQUEST_PREFIX = re.compile(r"^[A-Z]+ /\S*: ")
_UNTRUSTED_CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


def is_unreachable(error: Exception) -> bool:
    """Whether no connection to the API server comes about or lasts; one whose certificate is not trusted was reached."""
    return (
        isinstance(error, errors.ServerUnavailable) and error.status == 0 and _UNTRUSTED_CERTIFICATE not in str(error)
    )


def explain_error(error: Exception, server: str) -> str:
    """The line for an error that came from (or on the way to) the API server at ``server``."""
    match error:
        case errors.ServerUnavailable(status=0):
            return _explain_unreachable(str(error), server)
        case errors.Unauthorized(status=0):
            return f"there are no credentials for {server}: {error}"
        case errors.Unauthorized():
            return f"{server} does not accept the credentials ({error}): log in again or renew the kubeconfig's user"
        case errors.Forbidden():
            return _explain_forbidden(str(error), server)
        case errors.NotFound(reason=errors.KIND_NOT_SERVED):
            return f"{server}: {error}: {_how_to_install(error.api_version)}"
        case errors.TooManyRequests():
            return f"{server} asks for a pause of {error.retry_after_seconds:g} s ({error}): try again later"
        case errors.KubeError():
            return f"{server} answered: {error}"
    return str(error)


def _how_to_install(api_version: str) -> str:
    group = api_version.rpartition("/")[0]
    if group in _KARPENTER_GROUPS:
        return "install our CustomResourceDefinitions with `karpenter crds | kubectl apply -f -`"
    if "." not in group or group.endswith(".k8s.io"):
        return "is it the API server of a Kubernetes cluster, and a current one?"
    return f"install what brings the kinds of {group} first"


def _explain_unreachable(message: str, server: str) -> str:
    # What was being asked for does not matter, and without it all watches of a server that is away have one cause in common.
    cause = _REQUEST_PREFIX.sub("", message)
    if _UNTRUSTED_CERTIFICATE in cause:
        setting = "server and tls-server-name" if "mismatch" in cause else "certificate-authority"
        return f"the certificate of {server} is not trusted ({cause}): check the kubeconfig's {setting}"
    return (
        f"cannot reach the API server at {server} ({cause}): is it running, is the kubeconfig's context the right one?"
    )


def _explain_forbidden(message: str, server: str) -> str:
    match = _FORBIDDEN.search(message)
    if match is None:
        return f"{server} forbids it: {message}"
    resource = match["resource"] + (f".{match['group']}" if match["group"] else "")
    where, role = ("", "ClusterRole") if match["namespace"] is None else (f" in namespace {match['namespace']}", "Role")
    return (
        f"{match['user']} may not {match['verb']} {resource}{where} at {server}: "
        f"grant it with a {role} (apiGroups [{match['group']!r}], resources [{match['resource']!r}], "
        f"verbs [{match['verb']!r}])"
    )
