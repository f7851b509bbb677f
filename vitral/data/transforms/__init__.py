"""From decoded pixels to the model's input, as pure functions; random ones take a generator."""
