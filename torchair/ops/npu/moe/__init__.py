"""Define mixture-of-experts ops: routing, dispatch, grouped products and communication."""
