package testkit

import "flag"

// Waiting lets eight parallel tests of a package run at once, however few processors there are. A package whose tests
// mostly wait for time, disks or other processes calls it in TestMain. Tests that compute get slower by it.
func Waiting() {
	flag.Parse()
	if err := flag.Set("test.parallel", "8"); err != nil {
		panic(err) // there is no such flag: the program is no test
	}
}
