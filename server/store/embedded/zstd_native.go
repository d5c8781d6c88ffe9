//go:build cgo && !pebblegozstd

package embedded

// nativeZstd says that Pebble has Zstandard as a C library, by the condition above, which
// is Pebble's.
const nativeZstd = true
