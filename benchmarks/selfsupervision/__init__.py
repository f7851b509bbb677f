"""Pre-training without labels at equal CPU time: k-NN, a linear probe, and fine-tuning on a tenth of the labels."""
