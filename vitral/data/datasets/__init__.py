"""Sources of images, one file for each kind, all giving `Samples`."""
