"""Federation between the logs of mqlake sites: `docs/federation.md`, "Between mqlake sites".

A message is named by its position in its origin's log: site, epoch, partition and offset. Each link
has a cursor in the log of the site that sends (`streams.outlet`); each site has the numbers that it
has had of every stream (`streams.streams`), and it appends messages that it takes to its own log
(`streams.inlet`). `streams.log_messages` makes records of messages on links and back. `interest` is
what sites want. Nothing of these two rooms knows a socket, a log or a clock. `links.connection` is
the wire, `service` the process around all of them, `links.link` its state of each neighbour.
"""
