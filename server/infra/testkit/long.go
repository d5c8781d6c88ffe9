package testkit

import "os"

// Long says whether tests take their long form: real times instead of short ones, and all of what is large. Every night
// does (PARLEY_TEST_LONG=1).
func Long() bool { return os.Getenv("PARLEY_TEST_LONG") == "1" }
