"""Amazon Linux 2: a script that calls the image's own bootstrap script (AWS-240 to AWS-243)."""

from __future__ import annotations

from collections.abc import Iterator

from karpenter.providers.aws.userdata import mime
from karpenter.providers.aws.userdata.flags import kubelet_extra_args
from karpenter.providers.aws.userdata.inputs import Bootstrap, KubeletWords

_HEAD = (
    "#!/bin/bash -xe",
    "exec > >(tee /var/log/user-data.log | logger -t user-data -s 2>/dev/console) 2>&1",
)


def write(given: Bootstrap) -> str:
    """The owner's parts, then ours. Raises ``UserDataError``."""
    return mime.joined((*_own(given.custom), mime.part(mime.SHELL, _script(given))))


def _own(custom: str) -> tuple[mime.Part, ...]:
    if not custom:
        return ()
    return mime.parts_of(custom) if mime.is_mime(custom) else (mime.part(mime.SHELL, custom),)


def _script(given: Bootstrap) -> str:
    return "\n".join((*_HEAD, " \\\n".join(_command(given)), ""))


def _command(given: Bootstrap) -> Iterator[str]:
    """The call, one line each."""
    words = KubeletWords(given)
    cluster = given.cluster
    authority = f" --b64-cluster-ca {_quoted(cluster.ca_bundle)}" if cluster.ca_bundle else ""
    endpoint = f"--apiserver-endpoint {_quoted(cluster.endpoint)}"
    yield f"/etc/eks/bootstrap.sh {_quoted(cluster.name)} {endpoint}{authority}"
    if words.cluster_dns:
        server = words.cluster_dns[0]
        if ":" in server:
            yield "--ip-family ipv6"
        yield f"--dns-cluster-ip {_quoted(server)}"
    yield "--use-max-pods false"
    yield f"--kubelet-extra-args {_quoted(kubelet_extra_args(words))}"
    if given.raid0:
        yield "--local-disks raid0"


def _quoted(text: str) -> str:
    """One word for the shell, always in quotes."""
    return "'" + text.replace("'", "'\\''") + "'"
