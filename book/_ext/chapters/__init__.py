"""What the book says of its chapters as wholes: differences, the map, the course."""
