"""The controller of EC2NodeClasses: selectors resolved into a status that launches go by, and the judgement whether it is usable.

A look at a class runs its parts in a fixed order (AWS-082): each asks AWS through caches, answers with the conditions and status
fields it decides, and is followed by the next even if it failed. One write ends the look. What follows from answers alone
(queries, the choice of images, hashes, drift) is functions.
"""
