"""`localmoe doctor`: what this machine is, what holds it back, and what it could run.

Owns the findings, their fixes and the report. Predicts nothing: the engine's plans and its model of cost do.
"""
