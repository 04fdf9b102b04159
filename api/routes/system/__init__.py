"""The system itself: its processes and figures, jobs, alarms, nodes, links to other sites."""
