package testkit

import "flag"

// Waiting lets 16 tests of a package run beside each other, however few processors there are. Packages whose tests wait for
// time, disks or other processes most of the time call it in TestMain; tests that compute get slower by it.
func Waiting() {
	flag.Parse()
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err) // there is no such flag: the program is no test
	}
}
