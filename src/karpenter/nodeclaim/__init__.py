"""Carrying plans out and driving each object's life: launch, register, initialise, nominate, drain, terminate, collect.

Every function here looks at one object as it is now and takes the next step; nothing is remembered that a restart could not find
again in the API server or the cloud. When to look is the business of ``control``, what to decide that of ``decide``.
"""
