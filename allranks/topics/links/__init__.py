"""Links: what joins the ranks, and how long a message takes on it."""
