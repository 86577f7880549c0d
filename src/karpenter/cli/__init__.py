"""What people type and read: the commands, their input and their output.

Here text becomes typed objects and plans become pages; errors become one line that says what, where and how to mend it. No
decision is taken here. Everything heavy is imported inside the command that needs it, so that each starts at once.
"""
