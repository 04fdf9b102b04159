"""Gateways, clients and the log in one simulated world: everything that happens comes from a seed.

A `Schedule` says what clients do and which faults strike before which event. `World` runs it on a
virtual clock: a heap of events, each of which one process (or the log, or a client) takes. Only
the hosts are test code, from `Node` to `Process`; they run the real `Shard`, `Holder` and acts.
`Judge` sees what clients see and what the log has, and raises `Violation` with the name of a broken
promise.

What is taken for granted: requests of one process to one partition land in their order, within
LATE_MS after they were sent, whatever becomes of the process; clocks run at one rate.
"""
