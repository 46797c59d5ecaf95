"""Define operators of users, and check them."""
