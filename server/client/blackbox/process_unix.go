//go:build unix

package blackbox

import (
	"os/exec"
	"syscall"
)

// setGroup has a command start in a process group of its own, because a client may be started by a shell.
func setGroup(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

// killGroup kills a command and the processes that it started.
func killGroup(cmd *exec.Cmd) { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

// freeze stops a command and the processes that it started, or continues them.
func freeze(cmd *exec.Cmd, frozen bool) error {
	signal := syscall.SIGCONT
	if frozen {
		signal = syscall.SIGSTOP
	}
	return syscall.Kill(-cmd.Process.Pid, signal)
}
