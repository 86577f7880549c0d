"""What EC2 sells: instance types as a node class sees them, their prices, and what is unavailable now (AWS §§7-8).

``instance_type_provider`` combines and caches. The rest is functions of raw facts and a class (``ec2_hardware``,
``nodeclass_terms``, ``ec2_offerings``) or state of its own (prices, unavailable offerings, reservations,
``discovered_capacity``). Nothing here decides what is launched.
"""
