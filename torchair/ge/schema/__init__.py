"""Facts about IR ops: dtypes, formats, references and descriptors."""
