"""Self-training: a teacher labels images for a student, which labels them for the next; each is an ordinary run."""
