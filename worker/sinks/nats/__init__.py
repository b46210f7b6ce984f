"""The NATS sink: a message for each change in a JetStream stream of its own, exactly once.

``sink`` is the driver's side, ``writer`` what tasks do. A task makes the lines of its partition and says to which subject each
goes (``outgoing``, ``subject_pattern``). The driver cuts them into units of whole source transactions (``unit_cutter``) and
publishes each as an atomic batch of JetStream's (``target_stream``). The last message of a unit says how far the worker is
(``published_state``): the position is where the data is, and there is no other.
"""
