"""Run Karpenter's end-to-end suites against this controller on a real control plane: `make conformance`.

The control plane has the scheduler and the controllers that the suites expect, with the node lifecycle and taint eviction
controllers. The controller runs as a process of its own, with production intervals, and simulates the instance types of
Karpenter's own simulated provider. A whole run writes its table to `docs/conformance/`; a run of some specs only where asked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

from conformance import default_spread, outcomes, performance, suites  # noqa: E402
from conformance.suites import Suite  # noqa: E402
from controlplane import deployed  # noqa: E402
from controlplane.harness import ControlPlane, die_with_parent  # noqa: E402
from controlplane.process import Controller, controller  # noqa: E402
from support.webhook_outside_cluster import webhook_environment  # noqa: E402

_DOCUMENTS = Path(__file__).parents[2] / "docs" / "conformance"
#: Besides those the harness starts: what taints and empties nodes that are not ready, binds volumes and tracks claims.
_CONTROLLERS = (
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "persistentvolume-binder-controller",
    "persistentvolume-protection-controller",
    "persistentvolumeclaim-protection-controller",
    "ephemeral-volume-controller",
    "replicationcontroller-controller",
    "cronjob-controller",
)
#: Feature gates that Karpenter's suites install with (target `apply` of its Makefile, values of its tests), and overlays.
_FEATURE_GATES = (
    "StaticCapacity=true,CapacityBuffer=true,NodeOverlay=true,NodeRepair=true,SpotToSpotConsolidation=false,"
    "TerminateFirstDrift=true,TerminateFirstRepair=true"
)

#: Nothing restarts the process here, as a Deployment would after a lost lease on a slow machine.
_FLAGS = ("--disable-leader-election",)
_FLAGS_OF_SUITE = {Suite.DRA: ("--ignore-dra-requests=false",)}
#: A spec wants to see a replacement beside the node it replaces, which lasts less than its poll where instances register at once.
_FAULTS_OF_SUITE = {Suite.DISRUPTION: {"registration": [{"delay": "3s"}]}}
#: The suites read the controller's settings from its Deployment. The process runs beside the cluster, so no replica is asked for.
#: Specs that would change a setting (none but those that need a scheduler configured for them) would wait for a replica in vain.
_DEPLOYMENT: Mapping[str, object] = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": {"name": "karpenter", "namespace": "kube-system"},
    "spec": {
        "replicas": 0,
        "selector": {"matchLabels": {"app.kubernetes.io/name": "karpenter"}},
        "template": {
            "metadata": {"labels": {"app.kubernetes.io/name": "karpenter"}},
            "spec": {
                "containers": [
                    {
                        "name": "controller",
                        "image": "karpenter",
                        "env": [{"name": "FEATURE_GATES", "value": _FEATURE_GATES}],
                    }
                ]
            },
        },
    },
}


@dataclass(frozen=True)
class Options:
    """What to run. ``timeout_seconds`` replaces the suites' default wait of 15 minutes; empty texts filter nothing."""

    suite: Suite
    profile: str
    focus: str
    skip: str
    timeout_seconds: int
    shards: int
    report: Path | None
    output: Path

    @property
    def title(self) -> str:
        """What was run, such as ``regression, --profile karpenter``."""
        return f"{self.suite}, `--profile {self.profile}`" if self.profile else str(self.suite)

    @property
    def has_default_spread(self) -> bool:
        """Whether its specs need a scheduler and a controller with default topology spread."""
        return default_spread.CONTAINER in self.focus

    @property
    def table(self) -> Path | None:
        """Where the table goes; None for a run of some specs only, unless a file is named."""
        if self.report is not None or self.focus or self.skip:
            return self.report
        name = f"{self.suite}-{self.profile}" if self.profile else str(self.suite)
        return _DOCUMENTS / f"{name}.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a suite, print the table and how many specs ended how. 0 if no spec failed."""
    options = _parsed(arguments)
    specs = run(options)
    title = f"Karpenter {suites.release()}: {options.title}"
    if options.table is not None and specs:
        options.table.parent.mkdir(exist_ok=True)
        options.table.write_text(outcomes.markdown_page(title, specs) + _figures(options.suite, specs))
    failed = [spec for spec in specs if spec.outcome is outcomes.Outcome.FAILED]
    for spec in failed:
        print(f"FAILED {spec.group}: {spec.text}\n       {spec.failure}")
    print(f"{title}: {outcomes.counts_text(specs)}")
    return 1 if failed or not specs else 0


def _figures(suite: Suite, specs: Sequence[outcomes.Spec]) -> str:
    """The figures that a performance suite has limits for."""
    if suite is not Suite.PERFORMANCE:
        return ""
    measured = {spec.text: performance.measurements(spec.output) for spec in specs}
    return f"\n## Limits and figures\n\n{performance.figures_table(_limits(suite), measured)}"


def _limits(suite: Suite) -> dict[str, list[performance.Limit]]:
    return performance.limits_by_spec(performance.sources(suites.folder(suite)))


def _suite_environment(suite: Suite) -> dict[str, str]:
    return performance.suite_environment(_limits(suite)) if suite is Suite.PERFORMANCE else {}


def run(options: Options) -> tuple[outcomes.Spec, ...]:
    """Run a suite and return its specs. A whole run goes in shards, each on a control plane of its own.

    Specs that measure go one after another, each with a controller of its own: a Python process does not give back the memory
    that an earlier spec took.
    """
    binary = suites.binary(options.suite, options.timeout_seconds)
    if options.suite is Suite.PERFORMANCE:
        wanted = [spec for spec in _specs_of(binary) if re.search(options.focus, spec.text)]
        singles = (_shard_options(options, number, _focus_on([spec])) for number, spec in enumerate(wanted, start=1))
        return tuple(spec for single in singles for spec in _run_shard(binary, single))
    if options.focus or options.skip or options.shards == 1:
        return _run_shard(binary, options)
    groups = _shards(_spec_counts(binary), options.shards)
    with ThreadPoolExecutor(len(groups)) as pool:
        shards = [
            _shard_options(options, number, _focus_on_groups(group)) for number, group in enumerate(groups, start=1)
        ]
        return tuple(spec for specs in pool.map(partial(_run_shard, binary), shards) for spec in specs)


def _shard_options(options: Options, number: int, focus: str) -> Options:
    output = options.output.with_name(f"{options.output.stem}-{number}{options.output.suffix}")
    return replace(options, focus=focus, output=output)


def _focus_on_groups(groups: Sequence[str]) -> str:
    """Ginkgo compares with the suite's description, a blank, and the texts of containers and spec."""
    return f"^[^ ]+ ({'|'.join(groups)}) "


def _spec_counts(binary: Path) -> Mapping[str, int]:
    """How many specs each top-level container of a suite has."""
    return Counter(spec.group.partition(" / ")[0] for spec in _specs_of(binary))


def _specs_of(binary: Path) -> tuple[outcomes.Spec, ...]:
    """The specs of a suite, none of which was run."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "report.json"
        flags = ("-test.v", "-ginkgo.dry-run", f"-ginkgo.json-report={result}")
        subprocess.run([binary, *flags], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT, check=True)
        return outcomes.read_report(result.read_bytes())


def _shards(spec_counts: Mapping[str, int], shards: int) -> list[list[str]]:
    """The containers by shard, the largest first to the shard with the fewest specs; one with settings of its own is a shard."""
    usual = {name: count for name, count in spec_counts.items() if name != default_spread.CONTAINER}
    groups: list[list[str]] = [[] for _ in range(min(shards, len(usual)))]
    for name in sorted(usual, key=lambda name: (-usual[name], name)):
        min(groups, key=lambda group: sum(usual[member] for member in group)).append(name)
    return groups + [[name] for name in spec_counts if name not in usual]


def _run_shard(binary: Path, options: Options) -> tuple[outcomes.Spec, ...]:
    """The specs of a shard. Those that stand behind a failed one in an ordered container are run again without it."""
    with tempfile.TemporaryDirectory() as folder, _cluster(Path(folder), options) as plane:
        specs = _run_specs(binary, options, plane)
        behind = [spec for spec in specs if spec.is_behind_failure]
        if not behind:
            return specs
        again = replace(options, focus=_focus_on(behind), output=options.output.with_suffix(".again.log"))
        second = {(spec.group, spec.text): spec for spec in _run_specs(binary, again, plane)}
        return tuple(second.get((spec.group, spec.text), spec) for spec in specs)


def _focus_on(specs: Iterable[outcomes.Spec]) -> str:
    """As ``_focus_on_groups``, for single specs."""
    texts = (" ".join((*spec.group.split(" / "), spec.text)) for spec in specs)
    return f"^[^ ]+ ({'|'.join(re.escape(text) for text in texts)})$"


def _run_specs(binary: Path, options: Options, plane: ControlPlane) -> tuple[outcomes.Spec, ...]:
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "report.json"
        with options.output.open("wb") as output:
            subprocess.run(
                [binary, *_ginkgo_flags(options, result)],
                cwd=folder,
                env={**os.environ, "KUBECONFIG": plane.kubeconfig, **_suite_environment(options.suite)},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        return outcomes.read_report(result.read_bytes())


def _ginkgo_flags(options: Options, result: Path) -> Iterator[str]:
    yield "-test.timeout=0"
    yield "-test.v"
    yield "-ginkgo.no-color"
    yield "-ginkgo.timeout=6h"
    yield f"-ginkgo.json-report={result}"
    yield from (f"-ginkgo.focus={options.focus}",) if options.focus else ()
    yield from (f"-ginkgo.skip={options.skip}",) if options.skip else ()


@contextmanager
def _cluster(folder: Path, options: Options) -> Iterator[ControlPlane]:
    """A control plane with the CRDs and a running controller."""
    instance_types = folder / "instance-types.json"
    instance_types.write_text(json.dumps(suites.instance_types()))
    faults = folder / "faults.json"
    faults.write_text(json.dumps(_FAULTS_OF_SUITE.get(options.suite, {})))
    files = (f"--instance-types={instance_types}", f"--simulated-faults-file={faults}")
    flags = (*files, f"--feature-gates={_FEATURE_GATES}", *_FLAGS)
    profile = (f"--profile={options.profile}",) if options.profile else ()
    environment: Mapping[str, str] = {}
    configuration = None
    if options.has_default_spread:
        configuration = default_spread.scheduler_configuration(suites.folder(options.suite))
        environment = default_spread.controller_environment(configuration)
    with ControlPlane(
        scheduler=True,
        controllers=True,
        more_controllers=_CONTROLLERS,
        scheduler_configuration=configuration,
    ) as plane:
        plane.apply(*deployed.manifests("crds"), _DEPLOYMENT)
        plane.apply(*(default_spread.objects() if options.has_default_spread else ()))
        more = _FLAGS_OF_SUITE.get(options.suite, ())
        with (
            _device_driver(plane, options),
            # An API server that cannot reach the webhook lists all our objects again every second, which takes it two cores.
            webhook_environment(plane) as webhook,
            controller(
                plane.kubeconfig, *flags, *more, *profile, intervals={}, environment={**environment, **webhook}
            ) as process,
        ):
            _await_ready(process)
            measured = options.suite is Suite.PERFORMANCE
            try:
                with performance.controller_pod(plane, process) if measured else nullcontext():
                    yield plane
            finally:
                options.output.with_suffix(".controller.log").write_text(process.log)


@contextmanager
def _device_driver(plane: ControlPlane, options: Options) -> Iterator[None]:
    """The driver that publishes devices of nodes, for the suite that needs it. It listens on fixed ports: one at a time."""
    if options.suite is not Suite.DRA:
        yield
        return
    binary = suites.device_driver()
    plane.apply(*suites.device_driver_definitions())
    environment = {**os.environ, "KUBECONFIG": plane.kubeconfig}
    with options.output.with_suffix(".driver.log").open("wb") as log:
        driver = subprocess.Popen(
            [binary], env=environment, stdout=log, stderr=subprocess.STDOUT, preexec_fn=die_with_parent()
        )
        try:
            yield
        finally:
            driver.kill()
            driver.wait()


def _await_ready(process: Controller) -> None:
    process.until(process.is_ready, "become ready", 180.0)


def _parsed(arguments: Sequence[str] | None) -> Options:
    parser = argparse.ArgumentParser(prog="make conformance", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--suite", type=Suite, default=Suite.REGRESSION, choices=list(Suite), help="which suite to run")
    parser.add_argument("--profile", default="karpenter", help="profile of the controller's settings")
    parser.add_argument("--focus", default="", help="regular expression: only specs whose text matches")
    parser.add_argument("--skip", default="", help="regular expression: no specs whose text matches")
    parser.add_argument("--timeout-seconds", type=int, default=300, help="default wait of the suites for a condition")
    parser.add_argument("--shards", type=int, default=3, help="control planes of a whole run, side by side")
    parser.add_argument("--report", type=Path, default=None, help="where the table goes")
    parser.add_argument("--output", type=Path, default=Path("conformance.log"), help="where the suite's output goes")
    return Options(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    sys.exit(main())
