"""The experiments of the paper, by subject."""
