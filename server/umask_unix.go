//go:build unix

package main

import "syscall"

// keepPrivate has every file and directory that the process makes be its user's alone, whatever
// the umask was and whichever library makes it: the store, the event log and its broker each
// have modes of their own.
func keepPrivate() { syscall.Umask(0o077) }
