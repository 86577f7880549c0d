"""``karpenter doctor``: what is wrong with a set-up on AWS, what breaks because of it, and what mends it.

Checks only read, or try out without doing. Each looks at one thing and says what it found; none of them ends the others.
"""

from karpenter.providers.aws.doctor.doctor_checks import run_checks
from karpenter.providers.aws.doctor.doctor_types import DoctorFinding, DoctorSubject, FindingLevel

__all__ = ["DoctorFinding", "FindingLevel", "DoctorSubject", "run_checks"]
