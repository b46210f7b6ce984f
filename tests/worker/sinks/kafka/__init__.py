"""Tests of the Kafka sink on a real broker."""
