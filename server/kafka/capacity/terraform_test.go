package capacity_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/parley-chat/parley/server/kafka"
	"github.com/parley-chat/parley/server/kafka/capacity"
)

// What Terraform is given is what the code declares.
func TestTopics(t *testing.T) {
	text := capacity.Terraform()
	for _, topic := range kafka.Topics() {
		for _, want := range append([]string{`"` + topic.Name + `"`}, topic.Configs["retention.bytes"]) {
			if !strings.Contains(text, want) {
				t.Errorf("%s lacks %s", topic.Name, want)
			}
		}
	}
	path, err := exec.LookPath("terraform")
	if err != nil {
		t.Skip("not run: terraform is not there to check the form")
	}
	cmd := exec.Command(path, "fmt", "-check", "-")
	cmd.Env = append(os.Environ(), "TF_CLI_CONFIG_FILE=")
	cmd.Stdin = strings.NewReader(text)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("terraform fmt: %v %s", err, out)
	}
}
