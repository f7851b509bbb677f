"""The page of the server: hand-made, without a framework, and served from memory."""
