"""What is done to an image between the decoder and the model, as pure functions; chance comes from dice handed in."""
