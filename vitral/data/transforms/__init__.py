"""What is done to an image between the decoder and the model, as pure functions; random ones take a generator."""
