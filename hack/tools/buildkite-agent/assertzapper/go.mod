module drjosh.dev/assertzapper

go 1.26.0
