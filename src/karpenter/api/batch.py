"""Jobs and CronJobs (``batch/v1``), cut down to what decides how many pods they run."""

from __future__ import annotations

from karpenter.api.core import PodTemplateSpec
from karpenter.api.meta import Condition, LabelSelector, ObjectMeta, Wire


class JobSpec(Wire, frozen=True, kw_only=True):
    """Job specification; without ``completions`` one success ends the Job."""

    parallelism: int | None = None
    completions: int | None = None
    suspend: bool = False
    selector: LabelSelector | None = None
    template: PodTemplateSpec = PodTemplateSpec()


class JobStatus(Wire, frozen=True, kw_only=True):
    """How many pods succeeded, and whether the Job is complete or failed."""

    succeeded: int = 0
    conditions: tuple[Condition, ...] = ()


class Job(Wire, frozen=True, kw_only=True):
    """A Job."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()
    status: JobStatus = JobStatus()


class JobTemplateSpec(Wire, frozen=True, kw_only=True):
    """The Job a CronJob creates."""

    metadata: ObjectMeta = ObjectMeta()
    spec: JobSpec = JobSpec()


class CronJobSpec(Wire, frozen=True, kw_only=True):
    """CronJob specification."""

    suspend: bool = False
    job_template: JobTemplateSpec = JobTemplateSpec()


class CronJob(Wire, frozen=True, kw_only=True):
    """A CronJob."""

    metadata: ObjectMeta = ObjectMeta()
    spec: CronJobSpec = CronJobSpec()
