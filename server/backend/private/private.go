// Package private keeps the data directory from other users of the machine.
//
// It owns which of its files are the server's. New ones are private because the program sets
// its umask; this package is about those that are there already. Concurrency: it is called
// before anything in the directory is open.
package private
