"""What engines of clusters share: an agent on each node, and the messages between it and the hub.

An engine puts an `agent.Agent` on each node of its cluster, by whatever way the cluster has to
start a process there. The agent runs a `LocalEngine`. It carries out the commands of `wire` in
order. Its `outbox` keeps events until the hub has them. A `watchdog` beside each agent clears up if
the agent is killed. `files` brings jobs to nodes and their checkpoints back.
"""
