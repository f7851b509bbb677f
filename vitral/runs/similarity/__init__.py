"""Search, group and choose images of a collection by the features of a model."""
