"""Looking into a running graph: what each node computed."""
