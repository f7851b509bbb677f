"""From single images to batches: admission, decoding, and one lane of computation for all models."""
