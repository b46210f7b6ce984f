"""The webhook sink: changes as JSON in HTTP requests, each key's in order, at least once.

``sink`` names the steps. Tasks encode lines and choose their lanes (``writer``, ``placed_lines``); the driver cuts them into
requests (``request``) and hands these to its lanes (``batch_delivery``). Each lane has one ``sender`` with one connection to
the ``receiver``. ``deliveries`` remembers what became of each line.
"""
