"""The doctor: what is wrong with a data set, told before it is trained on."""
