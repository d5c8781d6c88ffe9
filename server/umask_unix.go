//go:build unix

package main

import "syscall"

// keepPrivate makes every file and directory of the process private to its user, regardless of
// the earlier umask and of the library that makes it: the store, the event log and its broker
// each have modes of their own.
func keepPrivate() { syscall.Umask(0o077) }
