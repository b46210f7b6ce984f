"""A run of tests itself: what it shows while it goes on and when a test fails, how its tests are spread, what it costs."""
