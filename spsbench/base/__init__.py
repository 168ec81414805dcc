"""What every room stands on: errors, files, records, axes, plugins and the environment."""
