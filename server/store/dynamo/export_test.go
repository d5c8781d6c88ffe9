package dynamo

import "testing"

// Fresh opens a store without rows, on tables of its own, or skips the test.
func Fresh(t testing.TB, o ...func(*Options)) *Store { return fresh(t, o...) }
