"""The subscriptions sink: events for thousands of subscribed HTTP receivers, from a single pass through the stream.

``sink`` names the steps. Tasks encode events (``event_writer``). In the driver ``live_pass`` hands each batch to the
receivers that want it (``event_index``), all at once, by threads (``dispatch``). A receiver that fails or takes long
leaves the pass (``subscriber``): from then on ``catching_up`` reads the stream again for it (``event_blocks``), until
it has caught up with the others. ``subscription_book`` knows the subscriptions, and stores the progress of each.
"""
