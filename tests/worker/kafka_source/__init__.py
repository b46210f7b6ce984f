"""Tests of worker/kafka_source."""
