package topic

import (
	"math/rand/v2"
	"slices"
	"testing"

	"google.golang.org/protobuf/proto"

	topicv1 "github.com/parley-chat/parley/gen/parley/topic/v1"
	"github.com/parley-chat/parley/server/infra/testkit"
)

func TestPositionsAreGrouped(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		in   []int64
		want []*topicv1.Positions
	}{
		"none":                      {nil, nil},
		"one":                       {[]int64{7}, []*topicv1.Positions{{Partition: 3, Base: 7, Count: 1}}},
		"a run in any order, twice": {[]int64{9, 7, 8, 7}, []*topicv1.Positions{{Partition: 3, Base: 7, Count: 3}}},
		"holes": {[]int64{1, 2, 5, 10},
			[]*topicv1.Positions{{Partition: 3, Base: 1, Count: 10, Bitmap: []byte{0b0001_0011, 0b10}}}},
		"far apart": {[]int64{1, 1_000_000},
			[]*topicv1.Positions{{Partition: 3, Base: 1, Count: 1}, {Partition: 3, Base: 1_000_000, Count: 1}}},
	} {
		got := groupPositions(3, tt.in)
		if !slices.EqualFunc(got, tt.want, func(a, b *topicv1.Positions) bool { return proto.Equal(a, b) }) {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Whatever the positions, those that are named are they, within the bounds of the contract.
func TestPositionsAreComplete(t *testing.T) {
	t.Parallel()
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 1))
		want := map[int64]bool{}
		at := random.Int64N(1000)
		for range random.IntN(1000) {
			want[at] = true
			switch random.IntN(10) {
			case 0:
				at += random.Int64N(100_000)
			case 1, 2:
				at += random.Int64N(20)
			default:
				at++
			}
		}
		if seed == 0 { // longer than one Positions may be
			for i := range int64(150_000) {
				want[i] = true
			}
		}
		var list []int64
		for p := range want {
			list = append(list, p)
		}
		got := map[int64]bool{}
		for _, p := range groupPositions(0, list) {
			if p.GetCount() > 65536 || len(p.GetBitmap()) > 8192 || p.GetCount() < 1 {
				t.Fatalf("seed %d: %d positions, %d bytes", seed, p.GetCount(), len(p.GetBitmap()))
			}
			if b := p.GetBitmap(); b != nil && len(b) != int(p.GetCount()+7)/8 {
				t.Fatalf("seed %d: %d bytes for %d positions", seed, len(b), p.GetCount())
			}
			eachPosition(p, func(at int64) {
				if got[at] {
					t.Fatalf("seed %d: %d is named twice", seed, at)
				}
				got[at] = true
			})
		}
		testkit.Equal(t, "positions", len(got), len(want))
		for p := range want {
			if !got[p] {
				t.Fatalf("seed %d: %d is missing", seed, p)
			}
		}
	}
}
