"""Interest: filters and share groups of each site, and the ways to them."""
