// Package faultydisk is a file system for tests of programs: it is mounted with FUSE, lives in
// memory, and does on command what disks do. It loses what was not synced, is slow, hangs, is
// full, returns errors, and flips bits.
//
// A power loss follows the model of POSIX, which is stricter than any file system: fsync of a
// file makes its pages and its size durable and no name, and fsync of a directory makes its
// entries durable. ext4, for one, also keeps the name of a new file that was synced. A program
// that is right under this model is right on all of them. Two things are kept as journals keep
// them, because no file system in use does otherwise: a rename within a directory is there as
// a whole or not at all, and of a directory's changes the first survive.
package faultydisk
