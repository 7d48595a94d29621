"""One op family per file: the loop, the scripted and the vectorised form stand side by side."""
