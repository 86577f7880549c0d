"""``karpenter doctor``: what is wrong with a set-up on AWS, what breaks because of it, and what mends it.

Checks only read, or try out without doing. Each looks at one thing and says what it found; none of them ends the others.
"""

from karpenter.providers.aws.doctor.examination import examine
from karpenter.providers.aws.doctor.findings import Finding, Level
from karpenter.providers.aws.doctor.patient import Patient

__all__ = ["Finding", "Level", "Patient", "examine"]
