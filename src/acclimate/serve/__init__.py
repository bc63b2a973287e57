"""Serving: the live page and the client that plays images as a stream."""
