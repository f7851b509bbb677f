"""Tasks: a model plus what it is for. Each gives the loop a loss and metrics, and the loop knows no more of it."""
