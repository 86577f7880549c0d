"""What NodePools sell to a pass: templates, purchase options, remaining limits and reservation units."""
