"""Explains unschedulable pods: a pure diagnosis of the pass's figures, and the one place where reasons become sentences.

The solver and its diagnosis build no text; events, JSON and tables all render the same values here, so the same cause always
reads the same.
"""
