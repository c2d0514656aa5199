"""Names of files in a model's folder, as the hub lays it out."""

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
