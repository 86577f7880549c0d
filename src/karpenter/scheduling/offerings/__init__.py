"""What NodePools sell to a pass: templates, launch options, remaining limits and reservation units."""
