"""The page of an explanation: one HTML file that needs no network."""
