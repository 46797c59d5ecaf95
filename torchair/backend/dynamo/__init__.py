"""Run Dynamo and AOTAutograd around the pipeline; the entry points of `torch.compile`."""
