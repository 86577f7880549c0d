"""``karpenter run``: the controller as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import TYPE_CHECKING, Annotated, NamedTuple

import typer

from karpenter.cli.main import BOOLEAN
from karpenter.control.settings import SETTINGS, SettingError, Settings, environment_name, flag_name, resolve

if TYPE_CHECKING:
    from karpenter.catalog.types import InstanceType
    from karpenter.control.manager import Manager
    from karpenter.kube.client import KubeClient
    from karpenter.providers.simulated import Faults

_USAGE = 2
_SIMULATED = "simulated"
_PROVIDER_VARIABLE = "KARPENTER_PROVIDER"
#: How often a process looks for what keeps it from being ready: while all is well, and once it has said what it is.
_LOOK_SECONDS = 1.0
_COMPLAIN_SECONDS = 10.0
#: Requests per second of the stand-in for machines, which would have a client each.
_STAND_IN_QPS = 2000


def _option(name: str, *aliases: str) -> typer.models.OptionInfo:
    setting = SETTINGS[name]
    shown = f"{setting.help} [env {environment_name(name)}, default {setting.default or 'empty'}]"
    metavar = BOOLEAN if setting.default in ("true", "false") else "TEXT"
    option: typer.models.OptionInfo = typer.Option(flag_name(name), *aliases, help=shown, metavar=metavar)
    return option


_PROVIDER_HELP = f"Where machines come from: simulated. [env {_PROVIDER_VARIABLE}, default {_SIMULATED}]"


def run(
    provider: Annotated[str | None, typer.Option(help=_PROVIDER_HELP, metavar="TEXT")] = None,
    log_level: Annotated[str | None, _option("log_level")] = None,
    health_probe_port: Annotated[str | None, _option("health_probe_port")] = None,
    kube_client_qps: Annotated[str | None, _option("kube_client_qps")] = None,
    kube_client_burst: Annotated[str | None, _option("kube_client_burst")] = None,
    batch_max_duration: Annotated[str | None, _option("batch_max_duration")] = None,
    batch_idle_duration: Annotated[str | None, _option("batch_idle_duration")] = None,
    preference_policy: Annotated[str | None, _option("preference_policy")] = None,
    min_values_policy: Annotated[str | None, _option("min_values_policy")] = None,
    nominate_pods: Annotated[str | None, _option("nominate_pods")] = None,
    nomination_qps: Annotated[str | None, _option("nomination_qps")] = None,
    instance_types: Annotated[str | None, _option("instance_types_file_path", "--instance-types")] = None,
    simulated_faults_file: Annotated[str | None, _option("simulated_faults_file")] = None,
) -> None:
    """Run the controller against the cluster of the kubeconfig (or of the pod it runs in)."""
    flags = {
        "log_level": log_level,
        "health_probe_port": health_probe_port,
        "kube_client_qps": kube_client_qps,
        "kube_client_burst": kube_client_burst,
        "batch_max_duration": batch_max_duration,
        "batch_idle_duration": batch_idle_duration,
        "preference_policy": preference_policy,
        "min_values_policy": min_values_policy,
        "nominate_pods": nominate_pods,
        "nomination_qps": nomination_qps,
        "instance_types_file_path": instance_types,
        "simulated_faults_file": simulated_faults_file,
    }
    _check_provider(provider)
    try:
        settings = resolve(flags, os.environ)
    except SettingError as error:
        _refuse(str(error), _USAGE)
    asyncio.run(_serve(settings))


def _check_provider(given: str | None) -> None:
    source = "--provider" if given is not None else _PROVIDER_VARIABLE
    wanted = os.environ.get(_PROVIDER_VARIABLE, _SIMULATED) if given is None else given
    if wanted != _SIMULATED:
        _refuse(f"{source}={wanted!r} is not a provider; choose {_SIMULATED}", _USAGE)


def _refuse(message: str, status: int) -> None:
    print(f"karpenter run: {message}", file=sys.stderr)  # noqa: T201
    raise typer.Exit(status)


def _types(settings: Settings) -> tuple[InstanceType, ...]:
    from karpenter.catalog import ec2, file

    if not settings.instance_types_file_path:
        return ec2.types()
    try:
        return file.load(settings.instance_types_file_path)
    except file.FileError as error:
        _refuse(str(error), _USAGE)
        raise


def _script(settings: Settings) -> Faults:
    from karpenter.providers.simulated import Faults, FaultsError, faults

    if not settings.simulated_faults_file:
        return Faults()
    try:
        return faults.load(settings.simulated_faults_file)
    except FaultsError as error:
        _refuse(str(error), _USAGE)
        raise


async def _serve(settings: Settings) -> None:
    import structlog

    from karpenter.control import logging
    from karpenter.control.health import HealthServer
    from karpenter.control.queue import supervised
    from karpenter.kube import config
    from karpenter.kube.throttle import TokenBucket

    logging.configure(settings.log_level)
    log = structlog.get_logger()
    market = _Market(_types(settings), _script(settings))
    try:
        connection = config.load()
        client = config.connect(connection, TokenBucket(settings.kube_client_qps, settings.kube_client_burst))
        nominating = config.connect(connection, TokenBucket(settings.nomination_qps, settings.nomination_qps))
        stand_in = config.connect(connection, TokenBucket(_STAND_IN_QPS, _STAND_IN_QPS))
    except config.ConfigError as error:
        _refuse(str(error), 1)
        raise
    log.info("starting", settings=settings.described(), server=connection.server)
    async with client, nominating, stand_in:
        manager = _manager(_Clients(client, nominating, stand_in), market, settings)
        work = asyncio.create_task(manager.run())
        complaints = asyncio.create_task(_complain(manager, client.server))
        health = None
        if settings.health_probe_port:
            checks = {"ping": lambda: "", "manager": manager.unready}
            health = asyncio.create_task(supervised("health", HealthServer(settings.health_probe_port, checks).run))
        await _until_told(work)
        log.info("Shutdown signal received, waiting for all workers to finish")
        tasks = [task for task in (work, complaints, health) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        log.info("All workers finished")


class _Clients(NamedTuple):
    """Connections with a pace of their own: the controller's, nominations', and the simulated machines' (as kubelets have)."""

    controller: KubeClient
    nominating: KubeClient
    machines: KubeClient


class _Market(NamedTuple):
    """What the simulated cloud sells, and what goes wrong with it."""

    types: tuple[InstanceType, ...]
    script: Faults


def _manager(clients: _Clients, market: _Market, settings: Settings) -> Manager:
    """The controller with the simulated cloud."""
    from karpenter.control.manager import Extra, Manager
    from karpenter.model.clock import SystemClock
    from karpenter.providers.simulated import Machines, SimulatedProvider

    clock = SystemClock()
    cloud = SimulatedProvider(clients.controller, clock, market.types, market.script)
    machines = Machines(clients.machines, clock)
    collectors = {"instances": cloud.collect_garbage}
    extra = Extra({"machines": machines.run}, collectors, clients.nominating, machines.faults)
    return Manager(clients.controller, cloud, clock, settings, extra)


async def _until_told(work: asyncio.Task[None]) -> None:
    """Wait for SIGTERM or SIGINT, or for the work to break."""
    told = asyncio.Event()
    loop = asyncio.get_running_loop()
    for sort in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(sort, told.set)
    waiting = asyncio.create_task(told.wait())
    await asyncio.wait({waiting, work}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    if work.done():
        work.result()


async def _complain(manager: Manager, server: str) -> None:
    """While watches fail, say why and what to do, once per cause until all is well again."""
    import structlog

    from karpenter.kube.explain import explain

    log = structlog.get_logger()
    said: set[str] = set()
    while True:
        lines = {explain(fault, server) for fault in manager.faults()}
        for line in sorted(lines - said):
            log.error("the API server cannot be used", error=line)
        if said and not lines:
            log.info("the API server can be used again")
        # Causes that come in turns, such as a connection refused and one cut off, are no news each time.
        said = said | lines if lines else set()
        await asyncio.sleep(_COMPLAIN_SECONDS if lines else _LOOK_SECONDS)
