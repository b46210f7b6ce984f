"""The Kafka sink: a record for each change, whole source transactions in Kafka's, exactly once for who reads what is committed.

Tasks encode, the driver produces. The position is a record of the same Kafka transaction, in a compacted topic.
"""
