"""What can be bought: instance types, their offerings and prices, and fast sets of types.

``types`` is the value model every provider produces; ``index`` prepares a list of types for decisions (bit sets per label
value and per resource threshold); ``ec2`` is the packaged table of EC2 shapes; ``file`` reads instance-type files.
Nothing here knows about pods or clusters.
"""
