"""The boundary: everything that frontends may ask of a model.

Owns sessions, scheduling, the plan and what is reported. Importing it loads nothing heavy:
take `Engine` from `localmoe.engine.engine`, the fake with the same face from `localmoe.engine.scripted`.
"""
