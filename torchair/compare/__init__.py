"""Find the source of wrong numbers: run every stage of a compile on the same inputs and locate the first
wrong node.

`torchair.debug.compare` is the public name.
"""
