"""What every part of the package may use, and what itself uses none of them."""
