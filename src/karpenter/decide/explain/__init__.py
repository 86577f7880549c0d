"""Reasons made readable: the one place where a category with its facts becomes a sentence.

Decisions never build text; events, JSON and tables all get theirs here, so the same cause always reads the same.
"""

from karpenter.decide.explain.exposure import exposure_lines
from karpenter.decide.explain.messages import message, pod_message, skip_message
from karpenter.decide.explain.misses import fault, hurdle, near_machine, sentence
from karpenter.decide.explain.short import FAILED, event_text, subjects

__all__ = [
    "FAILED",
    "event_text",
    "exposure_lines",
    "fault",
    "hurdle",
    "message",
    "near_machine",
    "pod_message",
    "sentence",
    "skip_message",
    "subjects",
]
