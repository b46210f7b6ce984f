"""The NATS sink: a message for each change in a JetStream stream of its own, exactly once.

``sink`` is the driver's side, ``writer`` what tasks do. A task makes the lines of its partition, each with its subject
(``subject_pattern``) and id, and frames units of whole source transactions (``whole_transactions``, ``atomic_unit``).
Transactions that several tasks have parts of, or that are too large, the driver cuts (``unit_cutter``). It sends each unit as
an atomic batch of JetStream's (``target_stream``). The last message of a unit says how far the worker is
(``published_state``): the position is where the data is, and there is no other.
"""
