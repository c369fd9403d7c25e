"""What every long run shares: engines, checkpoints, progress, results, and folders that are written whole or not at all."""
