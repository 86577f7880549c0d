"""The web console: a page, its data and a stream, for one user on loopback or served by the controller for many.

Pages are built from `console-web/` into ``assets`` and committed, so that the wheel needs no Node.js.
"""
