"""Build C++ extensions, and use them for the fast path of replays."""
