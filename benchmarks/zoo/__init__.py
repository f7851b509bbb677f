"""Every published plain ViT of other libraries, opened by ours and compared with the library's own answers."""
