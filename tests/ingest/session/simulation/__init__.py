"""Gateways, clients and the log in one simulated world: everything that happens comes from a seed.

A `Schedule` says what clients do and which faults strike before which event. `World` runs it on a
virtual clock: a heap of events, each of which one process (or the log, or a client) takes. Only
the hosts are test code, from `Node` to `Process`; they run the real `Shard`, `Holder` and acts, the
real `open_session`, exchanges of QoS 2 and what saves progress.
`Judge` sees what clients see and what the log has, and raises `Violation` with the name of a broken
promise.

What is taken for granted: requests of one process to one partition land in their order, within
LATE_MS after they were sent, whatever becomes of the process. Clocks of machines differ in rate by
half a per cent at most, their calendars by anything. A machine that is frozen does not notice; when
it goes on its gateway hears heartbeats of others before it does anything else.
"""
