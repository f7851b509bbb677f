"""The routes: Vitral's own API, the Open Inference Protocol, and their documentation."""
