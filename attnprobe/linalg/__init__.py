"""Inverses of small cores, norms of tall matrices, k-means and weighted sampling."""
