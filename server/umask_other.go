//go:build !unix

package main

// keepPrivate does nothing: files have no modes here.
func keepPrivate() {}
