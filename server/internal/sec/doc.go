// Package sec holds the security programme to its word: each control of server/SECURITY.md
// has a test, or the page says in words that it is missing, and each seeded mistake is
// noticed. Tests of one package are in that package; here are the tests that concern all of
// them.
//
// It has no code of its own. Package sectest has the attacks that several tests share.
package sec
