"""How other libraries keep a Vision Transformer: a file for each, the same rules for reading and for writing."""
