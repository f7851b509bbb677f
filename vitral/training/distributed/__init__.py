"""Training in several processes under torchrun: process group, DDP, FSDP and sharded checkpoints."""
