"""The webhook sink: changes as JSON in HTTP requests, each key's in order, at least once.

``sink`` names the steps. Tasks place lines (``placed_lines``) on lanes (``lane_choice``); the driver cuts them into requests
(``request``) and hands these to its lanes (``lanes``), each of which has one courier (``courier``) with one connection
(``connection``) to the receiver (``receiver``).
"""
