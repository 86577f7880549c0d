"""Instance types, their offerings and prices, and fast sets of types.

``instance_type`` is the value model every provider produces; ``type_index`` prepares a list of types for decisions (bit sets per
label value and per resource threshold); ``ec2_packaged_types`` is the table of EC2 shapes, ``ec2_regions`` what each region
offers at which prices; ``instance_type_file`` reads instance type files; ``overlay_application`` applies NodeOverlays. Nothing
here depends on pods or clusters.
"""
