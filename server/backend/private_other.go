//go:build !unix

package backend

// makePrivate does nothing: files have no modes here.
func makePrivate(string) error { return nil }
