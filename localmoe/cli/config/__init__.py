"""`localmoe config`: the settings in force, where each comes from, and changing them."""
