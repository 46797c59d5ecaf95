"""What users type: names, signatures, scripts."""
