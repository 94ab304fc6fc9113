"""Words that every layer uses: tensor types, source locations and errors."""
