"""The pure decisions: functions of an immutable snapshot, without I/O, clock or globals.

``provision`` finds machines for waiting pods, ``disrupt`` says which machines may go, ``explain`` turns reasons into sentences.
A plan is a frozen value that can be serialised, shown and executed later; carrying it out is the business of ``act``.
"""
