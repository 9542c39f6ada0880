"""nn.DataParallel: what one step of it keeps and moves."""
