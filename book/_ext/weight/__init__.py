"""What a page need not carry: rules of style, scripts and icons that it never uses."""
