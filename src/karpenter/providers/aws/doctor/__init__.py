"""``karpenter doctor``: what is wrong with an installation on AWS, what breaks because of it, and how to fix it.

Checks only read or make dry runs. Each checks one thing and returns findings; a failed check does not stop the others.
"""

from karpenter.providers.aws.doctor.doctor_checks import run_checks
from karpenter.providers.aws.doctor.doctor_types import DoctorFinding, DoctorSubject, FindingLevel

__all__ = ["DoctorFinding", "FindingLevel", "DoctorSubject", "run_checks"]
