"""Where do wrong numbers come from? Every stage of a compile on the same inputs, and the first node that is
wrong.

`torchair.debug.compare` is the public name.
"""
