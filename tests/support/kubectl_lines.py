"""Lines with kubectl as documents show them, done by the API calls that kubectl makes for them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from urllib.parse import urlencode

import yaml

from controlplane.harness import ApiError, ControlPlane, Json
from support import yaml_text

ROOT = Path(__file__).parents[2]
_FENCE = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_MERGE = "application/merge-patch+json"
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
_SWITCHES = frozenset({"-w", "--watch", "-A", "--all", "--overwrite", "--server-side"})


def shell_lines(text: str) -> Iterator[str]:
    """The lines of all shell blocks of a page, without comments, continued lines as one."""
    for block in _FENCE.findall(text):
        for line in block.replace("\\\n", " ").splitlines():
            words = line.split(" #")[0].strip()
            if words and not words.startswith("#"):
                yield words


class Kubectl:
    """Does lines with kubectl on a control plane, as its administrator, in the namespace ``default`` where they name none.

    ``files``: the text of files that a page has made before, by name. No kubelet runs: what asks one (``logs``, ``exec``,
    ``port-forward``) is checked up to the container or port that it names.
    """

    def __init__(self, plane: ControlPlane, files: Mapping[str, str] = {}) -> None:
        self._plane = plane
        self._files = files
        self._resources = dict(_resources(plane))

    def knows(self, resource: str) -> bool:
        """Whether the server has a kind under this name: plural, singular or short, with or without its group."""
        return resource in self._resources

    def run(self, line: str, stdin: str = "") -> str:
        """Do one line. Returns what it prints: the objects it reads as YAML, or their names."""
        program, *words = shlex.split(line)
        assert program == "kubectl"
        (verb, *names), options = _parsed(words)
        namespace = options.get("-n", options.get("--namespace", "default"))
        printed = None
        if verb in ("get", "describe"):
            return self._get(names[0].split(","), namespace, options, *names[1:])
        if verb in ("apply", "create", "set", "delete"):
            printed = self._change_objects(verb, names, options, namespace, stdin)
        elif verb in ("label", "annotate", "patch"):
            printed = self._patch(verb, names, options, namespace)
        elif verb in ("wait", "rollout"):
            printed = self._await(verb, names, options, namespace)
        elif verb in ("logs", "port-forward", "exec"):
            printed = self._find_container(verb, names, options, namespace)
        if printed is None:
            raise NotImplementedError(line)
        return printed

    def _get(self, kinds: Sequence[str], namespace: str, options: Mapping[str, str], name: str = "") -> str:
        found = [*self._objects(kinds, namespace, options, name)]
        if options.get("-o") == "name":
            return "\n".join(f"{self._full_name(each)}/{each['metadata']['name']}" for each in found)
        return yaml.safe_dump({"apiVersion": "v1", "kind": "List", "items": found})

    def _change_objects(
        self, verb: str, names: Sequence[str], options: Mapping[str, str], namespace: str, stdin: str
    ) -> str | None:
        match verb, names:
            case "apply", []:
                self._apply(options, stdin)
            case "create", ["deployment", name]:
                self._plane.apply(_deployment(name, options["--image"], int(options["--replicas"])))
            case "create", ["namespace", name]:
                self._plane.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
            case "create", ["clusterrolebinding", name]:
                self._plane.apply(_cluster_role_binding(name, options["--clusterrole"], options["--serviceaccount"]))
            case "create", ["token", name]:
                path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
                asked: Json = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
                return str(self._plane.request("POST", path, asked)["status"]["token"])
            case "set", ["resources", "deployment", name]:
                self._set_requests(name, dict(pair.split("=") for pair in options["--requests"].split(",")))
            case "delete", []:
                self._plane.delete(*_documents((ROOT / options["-f"]).read_text(encoding="utf-8")))
            case "delete", [kinds, *one]:
                self._delete(kinds.split(","), namespace, options, *one)
            case _:
                return None
        return ""

    def _patch(self, verb: str, names: Sequence[str], options: Mapping[str, str], namespace: str) -> str:
        target, pairs = _target(names)
        if verb == "patch":
            assert options["--type"] == "merge"
            change: Json = json.loads(options.get("--patch") or options["-p"])
        else:
            field = "labels" if verb == "label" else "annotations"
            change = {"metadata": {field: dict(pair.split("=", 1) for pair in pairs)}}
        self._plane.request("PATCH", self._one(target, namespace), change, _MERGE)
        return ""

    def _await(self, verb: str, names: Sequence[str], options: Mapping[str, str], namespace: str) -> str | None:
        match verb, names:
            case "wait", [kinds]:
                self._wait(kinds.split(","), options)
            case "rollout", ["status", target]:
                path = self._one(target, namespace)
                self._plane.until(
                    lambda: _is_rolled_out(self._plane.request("GET", path)), f"{target} to be rolled out"
                )
            case _:
                return None
        return ""

    def _find_container(
        self, verb: str, names: Sequence[str], options: Mapping[str, str], namespace: str
    ) -> str | None:
        match verb, names:
            case "logs", []:
                assert options["-c"] in self._containers(namespace, options["-l"])
            case "port-forward", [target, port]:
                containers = self._pod_spec(target, namespace)
                assert int(port) in [one["containerPort"] for each in containers for one in each["ports"]]
            case "exec", [target]:
                assert self._pod_spec(target, namespace)
            case _:
                return None
        return ""

    def _apply(self, options: Mapping[str, str], stdin: str) -> None:
        """With ``-k`` or a dry run the server checks the objects, but keeps none."""
        if "-k" in options:
            documents = [*self._kustomized(options["-k"])]
        else:
            file = options["-f"]
            known = stdin if file == "-" else self._files.get(file)
            documents = _documents((ROOT / file).read_text(encoding="utf-8") if known is None else known)
        assert documents
        if "-k" not in options and options.get("--dry-run") != "server":
            self._plane.apply(*documents)
            self._resources |= dict(_resources(self._plane))
            return
        for document in documents:
            self._plane.rehearse(document)

    def _kustomized(self, folder: str) -> Iterator[Json]:
        """The objects of a kustomization, that of a page for the folder the reader is in."""
        place = ROOT if folder == "." else ROOT / folder
        text = self._files["kustomization.yaml"] if folder == "." else (place / "kustomization.yaml").read_text("utf-8")
        (kustomization,) = _documents(text)
        for resource in kustomization["resources"]:
            if (place / resource).is_dir():
                yield from self._kustomized(str((place / resource).relative_to(ROOT)))
            else:
                yield from _documents((place / resource).read_text(encoding="utf-8"))

    def _delete(self, kinds: Iterable[str], namespace: str, options: Mapping[str, str], name: str = "") -> None:
        assert name or "--all" in options
        policy = {"orphan": "Orphan"}.get(options.get("--cascade", ""), "Background")
        for kind in kinds:
            path = f"{self._path(kind, namespace)}{f'/{name}' if name else ''}"
            self._plane.request("DELETE", f"{path}?propagationPolicy={policy}")

    def _wait(self, kinds: Sequence[str], options: Mapping[str, str]) -> None:
        awaited = options["--for"]
        if awaited == "delete":
            self._plane.until(lambda: not [*self._objects(kinds, "", {})], f"no {kinds} to be left")
            return
        _, _, condition = awaited.partition("=")
        found = [*self._objects(kinds, "", {})]
        assert found
        self._plane.until(
            lambda: all(_is_true(each, condition) for each in self._objects(kinds, "", {})), f"{condition} of {kinds}"
        )

    def _containers(self, namespace: str, selector: str) -> list[object]:
        """The names of the containers of every Deployment whose pods a selector selects."""
        key, _, value = selector.partition("=")
        deployments = self._plane.request("GET", self._path("deployments", namespace))["items"]
        templates: list[Json] = [one["spec"]["template"] for one in deployments]
        return [
            container["name"]
            for template in templates
            if template["metadata"]["labels"].get(key) == value
            for container in template["spec"]["containers"]
        ]

    def _pod_spec(self, target: str, namespace: str) -> list[Json]:
        """The containers of a Deployment."""
        kind, _, name = target.partition("/")
        found = self._plane.request("GET", self._one(f"{kind}/{name}", namespace))
        return found["spec"]["template"]["spec"]["containers"]

    def _one(self, target: str, namespace: str) -> str:
        """The path of ``kind/name``."""
        kind, _, name = target.partition("/")
        return f"{self._path(kind, namespace)}/{name}"

    def _full_name(self, found: Json) -> str:
        """``plural.group`` as `-o name` prints it."""
        version = str(found["apiVersion"])
        plural = self._resources[str(found["kind"]).lower()][1]
        return f"{plural}.{version.partition('/')[0]}" if "/" in version else plural

    def _objects(
        self, kinds: Iterable[str], namespace: str, options: Mapping[str, str], name: str = ""
    ) -> Iterator[Json]:
        everywhere = "-A" in options or "--all-namespaces" in options or not (name or "-n" in options)
        query = {"labelSelector": options.get("-l", ""), "fieldSelector": options.get("--field-selector", "")}
        for kind in kinds:
            path = self._path(kind, "" if everywhere else namespace)
            if name:
                yield self._plane.request("GET", f"{path}/{name}")
                continue
            found = self._plane.request("GET", f"{path}?{urlencode(query)}")
            head = {"apiVersion": found["apiVersion"], "kind": str(found["kind"]).removesuffix("List")}
            for each in found["items"]:
                yield {**head, **each}

    def _set_requests(self, deployment: str, requests: Mapping[str, str]) -> None:
        path = f"{self._path('deployment', 'default')}/{deployment}"
        spec: Json = self._plane.request("GET", path)["spec"]["template"]["spec"]
        containers = [{"name": one["name"], "resources": {"requests": requests}} for one in spec["containers"]]
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


def _target(names: Sequence[str]) -> tuple[str, Sequence[str]]:
    """``kind/name`` of the words ``kind/name`` or ``kind name``, and the words after it."""
    return (names[0], names[1:]) if "/" in names[0] else (f"{names[0]}/{names[1]}", names[2:])


def _is_rolled_out(deployment: Json) -> bool:
    """As `kubectl rollout status` decides it."""
    status, wanted = deployment.get("status", {}), deployment["spec"]["replicas"]
    is_observed = status.get("observedGeneration", 0) >= deployment["metadata"]["generation"]
    counts = {status.get(name, 0) for name in ("replicas", "updatedReplicas", "availableReplicas")}
    return is_observed and counts == {wanted}


def _is_true(found: Json, condition: str) -> bool:
    conditions: list[Json] = found.get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)


def _cluster_role_binding(name: str, role: str, account: str) -> Json:
    namespace, _, subject = account.partition(":")
    return {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace, "name": subject}],
    }


def _documents(text: str) -> list[Json]:
    return [document for document in yaml_text.documents(text) if document]


def _deployment(name: str, image: str, replicas: int) -> Json:
    labels: Json = {"app": name}
    container: Json = {"name": PurePosixPath(image).name.partition(":")[0], "image": image}
    template: Json = {"metadata": {"labels": labels}, "spec": {"containers": [container]}}
    spec: Json = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": spec}


def _resources(plane: ControlPlane) -> Iterator[tuple[str, tuple[str, str, bool]]]:
    """Every name of every kind that the server has, with where it is; what wins comes last."""
    groups: list[Json] = plane.request("GET", "/apis")["groups"]
    versions = [str(each["groupVersion"]) for group in groups for each in group["versions"]]
    for root in (*(f"/apis/{version}" for version in reversed(versions)), "/api/v1"):
        try:
            resources: list[Json] = json.loads(json.dumps(plane.request("GET", root)["resources"]))
        except ApiError:
            continue  # a group whose server is not there
        for resource in resources:
            plural = str(resource["name"])
            if "/" not in plural:
                group = f".{root.split('/')[2]}" if root != "/api/v1" else ""
                short: list[str] = resource.get("shortNames", [])
                for name in (plural, f"{plural}{group}", str(resource["singularName"]), *short):
                    yield name, (root, plural, bool(resource["namespaced"]))
