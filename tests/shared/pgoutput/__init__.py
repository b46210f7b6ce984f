"""Tests of ``shared.pgoutput`` against bytes recorded from real servers, and against messages that hypothesis makes."""
