"""What every request passes: access, limits, uploads, problems, metrics and logs."""
