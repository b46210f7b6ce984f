"""The command line, whole: the only package that knows click, and the only one above both the replicator and the worker.

``program`` finds the command that was chosen and ends the process with its exit code. ``commands`` and ``worker`` declare the
commands; ``flags`` gives them their options. What a command does is in the module of its name, without click. A control plane
that does the same over HTTP has its room here too, ``console/server/``.
"""
