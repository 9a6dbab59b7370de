"""What a person looks at: charts, film, page."""
