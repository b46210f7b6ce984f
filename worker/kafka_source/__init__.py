"""A worker that reads topics of Kafka, which another group's ``worker kafka`` wrote in the format pgsluice.

Everything in a worker is measured in one sequence: its position in the sink, batches, receipts, dead letters, lag.
Kafka has an offset for each partition instead. So the worker's group has a change stream in NATS that is an *index*
(``shared.wire.kafka_range``): a message names a range of offsets of one partition, and holds the vector of all offsets
that are indexed with it. The index is made once and never changed. So a sequence means one vector, whichever process
reads it, and the position that a sink stores with its data is that vector. What is exactly once for a group of a
replicator is so here, by the same code.

- ``topic_ends`` asks the brokers how far each partition goes: up to the last stable offset, after which a transaction
  is open.
- ``range_index`` adds the ranges that are new. Every message names the one that it must follow, and the process that
  adds a range makes it of the message before. So any number of workers of one group may do so at once: one of them is
  refused, and reads again.
- ``record_sizes`` reads them before, so that ranges and batches have the intended bytes.
- ``record_fetcher`` reads a range without a consumer group; ``range_reader``, in tasks, makes a message body of it.
  Ranges are tasks' work like messages, so partitions are read in parallel; those of one partition are in the index in
  order, and so are a key's changes.

What is not promised: whole source transactions, because their records lie in several partitions, which are indexed one
by one. A topic that was created again has another id. It is refused, before and after a range is read, and so is one
with more partitions than before, because keys have moved then.
"""
