"""What can be said of images by their features alone: neighbors, clusters, a subset that covers them, a map."""
