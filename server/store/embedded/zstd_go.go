//go:build !cgo || pebblegozstd

package embedded

const nativeZstd = false
