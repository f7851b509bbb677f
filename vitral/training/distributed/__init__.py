"""Training by many processes, which torchrun starts: how they meet, agree, share a model and save it."""
