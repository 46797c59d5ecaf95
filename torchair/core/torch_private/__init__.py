"""The only package that imports private modules of torch. It wraps them in small functions, ordered by
subject.

torch 2.11 to 2.13 differ in places. The differences are handled here, so that the other packages do not
depend on the version.
"""
