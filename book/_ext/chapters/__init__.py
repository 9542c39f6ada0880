"""What the book says about whole chapters: their differences, the map, the course."""
