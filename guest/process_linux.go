// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// chown makes the account the owner of a directory tree. It does not follow links. It does nothing for a nil
// account, or if the account already owns the root of the tree.
func (a *account) chown(tree string) error {
	if a == nil {
		return nil
	}

	if info, err := os.Stat(tree); err == nil {
		if st, ok := info.Sys().(*syscall.Stat_t); ok && st.Uid == a.uid {
			return nil
		}
	}

	return filepath.WalkDir(tree, func(file string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}

		return os.Lchown(file, int(a.uid), int(a.gid)) //nolint:gosec // no job runs yet, and links are not followed
	})
}

// applyTo makes the command run as the account and in its own process group.
func (a *account) applyTo(cmd *exec.Cmd) {
	setOwnGroup(cmd)

	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
		cmd.Env = append(cmd.Env, "HOME="+a.home, "USER="+runnerUser, "LOGNAME="+runnerUser)

		return
	}

	if os.Geteuid() == 0 && os.Getenv("HOME") == "" { // systemd sets no HOME for system services
		cmd.Env = append(cmd.Env, "HOME=/root")
	}
}

// setOwnGroup makes the command run in its own process group.
func setOwnGroup(cmd *exec.Cmd) {
	// Pdeathsig makes the kernel kill the program when the service ends, because nothing else would stop it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: killSignal}
}

// quitSignal asks gitlab-runner to stop after its job.
const quitSignal = syscall.SIGQUIT

// startGroup starts the command with its own process group.
func startGroup(cmd *exec.Cmd) error { return cmd.Start() }

// signalGroup signals the process group of a command. It does nothing if the command has not started.
func signalGroup(cmd *exec.Cmd, sig syscall.Signal) error {
	if cmd.Process == nil {
		return nil
	}

	return syscall.Kill(-cmd.Process.Pid, sig)
}
