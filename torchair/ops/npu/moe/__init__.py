"""Mixture-of-experts: routing, dispatch, grouped products and communication."""
