"""Dynamo: frames, guards, graph breaks and trace state."""
