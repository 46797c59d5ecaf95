"""Define the wire format of IR graphs.

`schema` declares it, `write` and `read` translate between messages and `ge.Graph`.
"""
