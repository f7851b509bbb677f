"""What is on disk: bundles, and what it takes to write and read them."""
