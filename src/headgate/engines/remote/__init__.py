"""What engines of clusters share: an agent on each node, and what it and the hub say to each other.

An engine puts an `agent.Agent` on each node of its cluster, by whatever way the cluster has to start a process there.
The agent runs a `LocalEngine`, does the commands of `wire` in their order, and keeps in its `outbox` what happens until
the hub has it. A `warden` beside each agent clears up should it be killed. `files` brings jobs to nodes and their
checkpoints back.
"""
