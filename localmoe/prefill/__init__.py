"""How a prompt is read: chunk by chunk where the experts rest, or while they flow through a ring of slots.

reader      chunks through a program of the resident network
pipeline    stream-loading prefill (SLP) on one device, or on several (DSLP)
loader, compute, unloader    its three actors, each on a thread of its own
ring        slots, and the groups of experts that pass through them
cluster     which device has which tokens and experts, and what they exchange (SmallEP)
mixed       prompts of medium length: each layer's experts shared by a device and the CPU, as split says
"""
