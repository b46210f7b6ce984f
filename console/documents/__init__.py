"""What groups are to be, as documents in the broker: planned, applied, exported, and run by whoever runs them."""
