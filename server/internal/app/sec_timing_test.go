package app

import (
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/parley-chat/parley/server/chat"
)

// mannWhitney returns how likely a value of a is greater than one of b, 0.5 for samples of one
// distribution, and how many standard deviations U is from its mean.
func mannWhitney(a, b []float64) (likelihood, z float64) {
	type value struct {
		v     float64
		first bool
	}
	all := make([]value, 0, len(a)+len(b))
	for _, v := range a {
		all = append(all, value{v, true})
	}
	for _, v := range b {
		all = append(all, value{v, false})
	}
	slices.SortFunc(all, func(x, y value) int {
		switch {
		case x.v < y.v:
			return -1
		case x.v > y.v:
			return 1
		}
		return 0
	})
	ranks := 0.0
	for i := 0; i < len(all); {
		j := i
		for j < len(all) && all[j].v == all[i].v {
			j++
		}
		for k := i; k < j; k++ { // equal values share their ranks
			if all[k].first {
				ranks += float64(i+j+1) / 2
			}
		}
		i = j
	}
	n, m := float64(len(a)), float64(len(b))
	u := ranks - n*(n+1)/2
	return u / (n * m), (u - n*m/2) / math.Sqrt(n*m*(n+m+1)/12)
}

// The statistic notices what it is for, and nothing else.
func TestMannWhitney(t *testing.T) {
	var a, b, later []float64
	for i := range 10_000 {
		v := float64((i*7919)%10_007) / 10_007
		a, b, later = append(a, v), append(b, float64((i*104_729)%10_007)/10_007), append(later, v+0.2)
	}
	if p, _ := mannWhitney(a, b); math.Abs(p-0.5) > 0.01 {
		t.Errorf("equal samples: %v", p)
	}
	if p, z := mannWhitney(later, a); p < 0.6 || z < 20 {
		t.Errorf("a sample that is a fifth later: %v, %v", p, z)
	}
}

// secTimings says that the machine is quiet enough for 10,000 samples of each answer, which the nightly run
// takes.
const secTimings = "PARLEY_TIMINGS"

// A chat of others and one that does not exist are refused in one class of times, by 10,000 samples of each, the order
// changing: medians differ by less than 10 µs, below what a network lets anybody measure (S-54). The probability that
// the one is slower than the other, by Mann and Whitney, is logged beside it.
func TestSec_S_54_TimingClass(t *testing.T) {
	if os.Getenv(secTimings) == "" {
		t.Skip("not run: " + secTimings + " is not set")
	}
	w := newSecWorld(t)
	theirs := w.things("", 0).theirs["chat"]
	token := "Bearer " + w.token("dan")
	once := func(procedure, id string) float64 {
		r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/parley."+procedure,
			strings.NewReader(fmt.Sprintf(`{"chatId":%q}`, id)))
		r.Host = "127.0.0.1"
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", token)
		rec := httptest.NewRecorder()
		began := time.Now()
		w.http.ServeHTTP(rec, r)
		took := time.Since(began)
		if rec.Code != http.StatusForbidden {
			t.Fatalf("%s: %d %s", procedure, rec.Code, rec.Body)
		}
		return float64(took)
	}
	for _, procedure := range []string{"chat.v1.ChatService/GetChat", "chat.v1.ChatService/ListMembers",
		"message.v1.MessageService/ListMessages"} {
		const samples = 10_000
		none := chat.NewID("chat_")
		var foreign, missing []float64
		for n := range samples + 1000 {
			var a, b float64
			if n%2 == 0 {
				a, b = once(procedure, theirs), once(procedure, none)
			} else {
				b, a = once(procedure, none), once(procedure, theirs)
			}
			if n >= 1000 { // the first warm everything up
				foreign, missing = append(foreign, a), append(missing, b)
			}
		}
		p, z := mannWhitney(foreign, missing)
		slices.Sort(foreign)
		slices.Sort(missing)
		apart := time.Duration(foreign[samples/2] - missing[samples/2])
		t.Logf("%s: medians %v and %v, P(foreign slower) %.4f, z %.2f", procedure, time.Duration(foreign[samples/2]),
			time.Duration(missing[samples/2]), p, z)
		if apart.Abs() > 10*time.Microsecond {
			t.Errorf("%s: a chat of others can be told from none: %v apart", procedure, apart)
		}
	}
}
