"""How the built-in model was made: corpus, model, training, export, conversion and reference data."""
