"""Dynamo and everybody else come in here."""
