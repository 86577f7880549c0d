"""Launching, reading and terminating instances on EC2 (AWS §§9-10).

``launch_filters`` and ``launch_plan`` decide what may be launched, ``fleet_request`` and ``launch_templates`` write the requests,
``fleet_launcher`` sends them and holds the protocol by which a lost answer is never paid for twice. ``instance_provider`` reads
and terminates, ``instance_controllers`` collects garbage, reports ended instances and tags.
"""
