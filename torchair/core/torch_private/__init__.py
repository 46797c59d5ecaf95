"""The only package that imports torch's private modules: small named functions that the project uses instead,
by subject.

torch 2.11 to 2.13 differ in places: the difference is handled here, so that nobody else has to know.
"""
