//go:build !unix

package blackbox

import (
	"errors"
	"os/exec"
)

// setGroup does nothing: there are no process groups.
func setGroup(*exec.Cmd) {}

// killGroup kills a command.
func killGroup(cmd *exec.Cmd) { _ = cmd.Process.Kill() }

// freeze is not supported.
func freeze(*exec.Cmd, bool) error { return errors.ErrUnsupported }
