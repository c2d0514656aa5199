"""How a token is made: one step for a batch of sessions, and the choice of the next token.

runner      steps through any program; sampler chooses
on_demand   a step whose experts are read from disk when they are chosen
beside      a step on a device and the CPU together: batch hands over, hot has the device's experts
alternation when a batch goes as two, one attended to while the other's experts are computed
"""
