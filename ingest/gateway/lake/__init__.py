"""Delta tables as gateways read them: by delta-rs, without Spark, in a process of its own.

delta-rs holds Python's interpreter lock while a query runs and keeps a few hundred megabytes, so it
may not be in the process that serves clients. `reader` is the gateway's side, `worker` the child's;
`table`, `messages` and `retained` run in the child.
"""
