"""What others need to be measured: programs that run in an environment of their own, never imported."""
