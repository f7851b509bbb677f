"""How accuracy falls when images are changed: corruptions, occlusion, shuffled cells, other textures, attacks."""
