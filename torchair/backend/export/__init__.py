"""Write models as graph files, and load them without their code."""
