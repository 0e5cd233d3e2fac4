// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"syscall"
)

// runnerUser is the account that runs jobs, if the image has it.
const runnerUser = "runner"

// account is who runs the runner; nil is who runs the service.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// findAccount looks for the runner's account. Only root can become it, and only in a
// real machine.
func (s *Service) findAccount() (*account, error) {
	if os.Geteuid() != 0 || filepath.Clean(s.opts.Root) != "/" {
		return nil, nil //nolint:nilnil // nobody to become
	}

	u, err := user.Lookup(runnerUser)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the image has no such account: jobs run as root
	}

	a := &account{home: u.HomeDir}

	if a.uid, err = id(u.Uid); err != nil {
		return nil, err
	}

	if a.gid, err = id(u.Gid); err != nil {
		return nil, err
	}

	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("list groups of user %s: %w", runnerUser, err)
	}

	for _, g := range groups {
		n, err := id(g)
		if err != nil {
			return nil, err
		}

		a.groups = append(a.groups, n)
	}

	return a, nil
}

func id(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("read id of user %s: %w", runnerUser, err)
	}

	return uint32(n), nil
}

// own gives a tree to the account, links not followed; a tree whose top is its own
// already is left alone.
func (a *account) own(tree string) error {
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

		return os.Lchown(file, int(a.uid), int(a.gid)) //nolint:gosec // before any job runs; links are not followed
	})
}

// apply makes a command run as the account, in a process group of its own.
func (a *account) apply(cmd *exec.Cmd) {
	// Without the service nothing bounds the runner any more: it goes with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: killSignal}

	if a != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: a.uid, Gid: a.gid, Groups: a.groups}
		cmd.Env = append(cmd.Env, "HOME="+a.home, "USER="+runnerUser, "LOGNAME="+runnerUser)

		return
	}

	if os.Geteuid() == 0 && os.Getenv("HOME") == "" { // systemd gives system services none
		cmd.Env = append(cmd.Env, "HOME=/root")
	}
}
