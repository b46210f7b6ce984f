"""The NATS sink: a message for each change in a separate JetStream stream, exactly once.

``sink`` is the driver's side, ``writer`` the tasks'. A task makes the lines of its partition, each with its subject
(``subject_pattern``) and id, and frames units of whole source transactions (``whole_transactions``, ``atomic_unit``).
Transactions that several tasks have parts of, or that are too large, the driver cuts (``unit_cutter``). It sends each
unit as an atomic batch of JetStream's (``target_stream``). The last message of a unit holds the worker's position
(``published_state``): there is no other.
"""
