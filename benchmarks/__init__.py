"""Programs that show and measure the whole: they run from the checkout and are not installed."""
