package bearer

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	"connectrpc.com/connect"
)

// maxToken is the longest token that is read from a file.
const maxToken = 8 << 10

// FromFile reads a token from a file each time that one is needed. One that was refused is not tried
// again.
func FromFile(path string) Source {
	var last string
	return func(_ context.Context, renew bool) (string, error) {
		f, err := os.Open(path)
		if err != nil {
			return "", err
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxToken))
		if err != nil {
			return "", err
		}
		token := strings.TrimSpace(string(b))
		if token == "" || renew && token == last {
			return "", connect.NewError(connect.CodeUnauthenticated,
				fmt.Errorf("the token in %s is refused or ends: put another one there", path))
		}
		last = token
		return token, nil
	}
}
