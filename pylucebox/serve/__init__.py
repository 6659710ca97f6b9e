"""`lucebox-serve`: llama-server with this package's drafts, kept running by a small supervisor.

The supervisor owns the port and starts a worker, which runs upstream's server in its own process. So an assertion in
the worker costs the requests that ran, not the port, and whoever asks meanwhile is told when to come back.
"""
