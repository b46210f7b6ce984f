"""The subscriptions sink: events for thousands of receivers that people subscribed over HTTP, from one pass over the stream.

``sink`` names the steps. Tasks encode events (``event_writer``). In the driver ``live_pass`` hands each batch to the receivers
that want it (``event_index``), all at once, by threads (``dispatch``). A receiver that fails or takes long leaves the pass
(``subscriber``): from then on ``catching_up`` reads the stream again for it (``event_blocks``), until it is where the others
are. ``subscription_book`` knows who subscribed, and keeps how far each is.
"""
