"""Turn one functional ATen graph into a runner."""
