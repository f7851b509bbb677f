"""What is told while a run goes on: its events, and the trackers that pass them on."""
