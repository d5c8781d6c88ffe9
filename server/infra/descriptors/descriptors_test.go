package descriptors

import (
	"os"
	"testing"
)

// Who has few files leaves most of them to the store, and has some clients always.
func TestShares(t *testing.T) {
	for _, tt := range []struct{ limit, used, log, wanted, store, clients int }{
		{1 << 20, 30, 208, 50_000, 1_000, 50_000},
		{20_000, 30, 208, 50_000, 1_000, 18_570},
		{1_024, 30, 208, 50_000, 170, 488},
		{400, 30, 208, 50_000, 66, 46},
		{400, 30, 208, 20, 66, 20},
		{256, 30, 208, 50_000, 64, 16},
	} {
		if got := storeOf(tt.limit); got != tt.store {
			t.Errorf("%+v: the store has %d", tt, got)
		}
		if got := clientsOf(tt.wanted, tt.log, tt.limit, tt.used); got != tt.clients {
			t.Errorf("%+v: clients have %d", tt, got)
		}
	}
}

// What the process opens is counted.
func TestCount(t *testing.T) {
	limit, before, ok := Count()
	if !ok || before == 0 {
		t.Skip("not run: this system does not say")
	}
	for range 10 {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
	}
	if _, after, _ := Count(); after < before+10 || limit < after {
		t.Errorf("%d before, %d after, of %d", before, after, limit)
	}
}
