"""The controller of EC2NodeClasses: resolves selectors into the status that launches use, and judges whether the class is usable.

One reconcile of a class runs its subreconcilers in a fixed order (AWS-082). Each reads AWS through caches and returns the
conditions and status fields it owns; the next one runs even if it failed. One write ends the reconcile. What follows from the
answers alone (queries, the choice of images, hashes, drift) is functions.
"""
