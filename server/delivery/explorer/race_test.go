//go:build race

package explorer

// underRace says that the race detector makes everything ten times slower.
const underRace = true
