"""Segmentation: sets with masks, dense models, training, selective whitening."""
