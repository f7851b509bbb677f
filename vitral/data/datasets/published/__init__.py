"""Published datasets, read from the files of their standard downloads. Nothing of them is shipped or downloaded."""
