package dynamo

import "testing"

// Fresh opens a store without rows, on tables of its own, or skips the test.
func Fresh(t testing.TB, o ...func(*Options)) *Store { return fresh(t, o...) }

// Faulty lets a third of all requests meet a fault, single writes with unknown
// outcomes included; count tells how many did.
func Faulty(seed uint64) (change func(*Options), count func() int) {
	draw := random(seed)
	f := &faults{only: func(operation string, n int) string {
		switch operation {
		case "PutItem", "UpdateItem", "DeleteItem":
			operation = "TransactWriteItems" // all that can happen to one of those
			if fault := draw(operation, n); fault != mixed && fault != cancelledFor && fault != inProgress {
				return fault
			}
			return ""
		}
		return draw(operation, n)
	}}
	return injecting(f), f.count
}
