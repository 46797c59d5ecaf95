"""Pattern replacements: ours and the users'."""
