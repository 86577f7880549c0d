"""Reasons made readable: the one place where a category with its facts becomes a sentence.

Decisions never build text; events, JSON and tables all get theirs here, so the same cause always reads the same.
"""
