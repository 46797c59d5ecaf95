"""Random programs over views, writes and gradients, compared with eager torch."""
