"""What everything else builds on: configs, errors, durable storage, the machine, counted randomness."""
