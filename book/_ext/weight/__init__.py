"""Remove what a page never uses: rules of style sheets, scripts and icons."""
