"""The parts of the benchmarks whose mistakes would make figures wrong without a sign."""
