"""What a pytest session does: options, targets, hooks, and the lab it owns."""
