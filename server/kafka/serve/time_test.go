package serve_test

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/parley-chat/parley/server/infra/testkit"
	"github.com/parley-chat/parley/server/kafka/serve"
)

// A half request ends its connection after ten seconds, and so does a client that shows no password. One that has
// shown it may be silent.
func TestTimeOfRequests(t *testing.T) {
	for _, user := range []string{"", "reader"} {
		for _, sent := range []int{0, 1, 3, 6} {
			t.Run(fmt.Sprintf("user %q sends %d bytes", user, sent), func(t *testing.T) {
				s := testkit.Value(serve.New(serve.Config{Log: newMemoryLog(topics()...), Groups: new(groupsDouble)}))(t)
				synctest.Test(t, func(t *testing.T) {
					ours, theirs := net.Pipe()
					defer ours.Close()
					ended := make(chan error, 1)
					go func() { ended <- s.Serve(t.Context(), theirs, user) }()
					began := time.Now()
					if sent > 0 {
						testkit.Value(ours.Write([]byte{0, 0, 0, 100, 1, 2}[:sent]))(t)
					}
					if user != "" && sent == 0 {
						time.Sleep(time.Hour)
						select {
						case err := <-ended:
							t.Errorf("a silent client's connection has ended: %v", err)
						default:
						}
						_ = ours.Close()
						<-ended
						return
					}
					if _, err := ours.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
						t.Errorf("the client reads %v, expected the end", err)
					}
					<-ended
					testkit.Equal(t, "time", time.Since(began), 10*time.Second)
				})
			})
		}
	}
}

// The bound of a greeting ends with the password, although the server waits for the next request by then.
func TestSilenceAfterThePassword(t *testing.T) {
	cfg := serve.Config{Log: newMemoryLog(topics()...), Groups: new(groupsDouble),
		Users: map[string]serve.User{"reader": testkit.Value(serve.NewUser(password))(t)}}
	s := testkit.Value(serve.New(cfg))(t)
	synctest.Test(t, func(t *testing.T) {
		ours, theirs := net.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- s.Serve(t.Context(), theirs, "") }()
		c := &raw{Conn: ours}
		time.Sleep(9 * time.Second)
		testkit.Equal(t, "code", exchange(t, c, 1, mechanismOf("SCRAM-SHA-256", "reader", password)).ErrorCode, 0)
		time.Sleep(time.Hour)
		testkit.Value(c.send(kmsg.NewPtrMetadataRequest()))(t)
		_ = ours.Close()
		<-ended
	})
}
