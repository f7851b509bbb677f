"""What a model predicts of hidden patches, one kind of target a file: pixels, gradients, features, codes."""
