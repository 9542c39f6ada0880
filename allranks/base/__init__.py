"""What every layer of the package may use: units, drawing, reports, paths."""
