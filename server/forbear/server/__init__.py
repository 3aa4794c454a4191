"""The process: composition root, the sender, the worker and the command line."""
