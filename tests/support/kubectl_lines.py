"""Lines with kubectl as documents show them, done by the API calls that kubectl makes for them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path, PurePosixPath

import yaml

from controlplane.harness import ApiError, ControlPlane, Json

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_STRATEGIC_MERGE = "application/strategic-merge-patch+json"
_SELECTING = {"-n", "--namespace", "-l", "--all", "-A"}
#: The options of each verb that documents use, as kubectl has them.
OPTIONS_OF_VERBS = {
    "annotate": {"-n", "-l", "--all", "--overwrite"},
    "apply": {"-f", "-k", "-n", "--server-side", "--dry-run"},
    "cordon": {"-l"},
    "create": {"-n", "--image", "--replicas", "--clusterrole", "--serviceaccount", "--duration"},
    "delete": {*_SELECTING, "-f", "--cascade", "--wait"},
    "describe": {"-n", "-l"},
    "drain": {"--ignore-daemonsets", "--delete-emptydir-data"},
    "exec": {"-n", "-c", "-it"},
    "explain": set(),
    "get": {*_SELECTING, "-o", "-w", "--field-selector", "--raw"},
    "label": {"-n", "-l", "--all", "--overwrite"},
    "logs": {"-n", "-c", "-l", "--tail"},
    "patch": {"-n", "--type", "--patch", "-p"},
    "port-forward": {"-n", "--namespace"},
    "rollout": {"-n"},
    "set": {"-n", "--requests"},
    "wait": {*_SELECTING, "--for", "--timeout"},
}
#: Options without a value.
_SWITCHES = frozenset({"-w", "--watch", "-A", "--all", "--overwrite"})


def shell_lines(text: str) -> Iterator[str]:
    """The lines of all shell blocks of a page, without comments, continued lines as one."""
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split(" #")[0].strip()
            if words and not words.startswith("#"):
                yield words


class Kubectl:
    """Does lines with kubectl on a control plane, as its administrator, in the namespace ``default``."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._resources = dict(_resources(plane))

    def knows(self, resource: str) -> bool:
        """Whether the server has a kind under this name: plural, singular or short, with or without its group."""
        return resource in self._resources

    def run(self, line: str, stdin: str = "") -> str:
        """Do one line. Returns the objects it reads as YAML."""
        program, verb, *words = shlex.split(line)
        assert program == "kubectl"
        names, options = _parsed(words)
        match verb, names:
            case "apply", []:
                file = options["-f"]
                self._plane.apply(*_documents(stdin if file == "-" else (ROOT / file).read_text(encoding="utf-8")))
            case "create", ["deployment", name]:
                self._plane.apply(_deployment(name, options["--image"], int(options["--replicas"])))
            case "set", ["resources", "deployment", name]:
                self._set_requests(name, dict(pair.split("=") for pair in options["--requests"].split(",")))
            case "get", [kinds]:
                return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": [*self._objects(kinds.split(","))]})
            case "delete", [kind, name]:
                self._plane.request("DELETE", f"{self._path(kind, 'default')}/{name}?propagationPolicy=Background")
            case _:
                raise NotImplementedError(line)
        return ""

    def _objects(self, kinds: Iterable[str]) -> Iterator[Json]:
        for kind in kinds:
            found = self._plane.request("GET", self._path(kind, ""))
            head = {"apiVersion": found["apiVersion"], "kind": str(found["kind"]).removesuffix("List")}
            for each in found["items"]:  # type: ignore[attr-defined]
                yield {**head, **each}

    def _set_requests(self, deployment: str, requests: Mapping[str, str]) -> None:
        path = f"{self._path('deployment', 'default')}/{deployment}"
        spec: Json = self._plane.request("GET", path)["spec"]["template"]["spec"]  # type: ignore[index]
        containers = [{"name": one["name"], "resources": {"requests": requests}} for one in spec["containers"]]  # type: ignore[attr-defined]
        change: Json = {"spec": {"template": {"spec": {"containers": containers}}}}
        self._plane.request("PATCH", path, change, _STRATEGIC_MERGE)

    def _path(self, kind: str, namespace: str) -> str:
        root, plural, is_namespaced = self._resources[kind]
        return f"{root}/namespaces/{namespace}/{plural}" if namespace and is_namespaced else f"{root}/{plural}"


def _parsed(words: list[str]) -> tuple[list[str], dict[str, str]]:
    names: list[str] = []
    options: dict[str, str] = {}
    waiting = iter(words)
    for word in waiting:
        if word == "--":
            break
        name, is_assigned, value = word.partition("=")
        if not word.startswith("-"):
            names.append(word)
        elif word in _SWITCHES:
            options[word] = ""
        else:
            options[name] = value if is_assigned else next(waiting)
    return names, options


def _documents(text: str) -> list[Json]:
    return [document for document in yaml.safe_load_all(text) if document]


def _deployment(name: str, image: str, replicas: int) -> Json:
    labels: Json = {"app": name}
    container: Json = {"name": PurePosixPath(image).name.partition(":")[0], "image": image}
    template: Json = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _resources(plane: ControlPlane) -> Iterator[tuple[str, tuple[str, str, bool]]]:
    """Every name of every kind that the server has, with where it is; what wins comes last."""
    groups: list[Json] = plane.request("GET", "/apis")["groups"]  # type: ignore[assignment]
    versions = [str(each["groupVersion"]) for group in groups for each in group["versions"]]  # type: ignore[attr-defined]
    for root in (*(f"/apis/{version}" for version in reversed(versions)), "/api/v1"):
        try:
            resources: list[Json] = json.loads(json.dumps(plane.request("GET", root)["resources"]))
        except ApiError:
            continue  # a group whose server is not there
        for resource in resources:
            plural = str(resource["name"])
            if "/" not in plural:
                group = f".{root.split('/')[2]}" if root != "/api/v1" else ""
                short: list[str] = resource.get("shortNames", [])  # type: ignore[assignment]
                for name in (plural, f"{plural}{group}", str(resource["singularName"]), *short):
                    yield name, (root, plural, bool(resource["namespaced"]))
