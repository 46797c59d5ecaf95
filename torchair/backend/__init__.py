"""The torch.compile backend: from Dynamo's graph to a runner."""
