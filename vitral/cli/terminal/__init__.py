"""What every verb shares on a terminal: help, usage errors and shell completion."""
