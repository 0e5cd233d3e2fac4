// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
)

// runnerUser is the name of the account that runs jobs if the image has this account.
const runnerUser = "runner"

// account is the account that runs the runner. A nil account is the account of the service.
type account struct {
	uid, gid uint32
	groups   []uint32
	home     string
}

// findAccount returns the runner's account. It returns nil if the image has no such account, if the service
// does not run as root, or if Options.Root is not "/", because the runner then runs as the service's account.
func (s *Service) findAccount() (*account, error) {
	if os.Geteuid() != 0 || !IsRoot(s.opts.Root) {
		return nil, nil //nolint:nilnil // the service cannot change its account
	}

	u, err := user.Lookup(runnerUser)
	if err != nil {
		return nil, nil //nolint:nilnil,nilerr // the image has no such account: jobs run as root
	}

	a := &account{home: u.HomeDir}

	if a.uid, err = parseID(u.Uid); err != nil {
		return nil, err
	}

	if a.gid, err = parseID(u.Gid); err != nil {
		return nil, err
	}

	groups, err := u.GroupIds()
	if err != nil {
		return nil, fmt.Errorf("list groups of user %s: %w", runnerUser, err)
	}

	for _, g := range groups {
		n, err := parseID(g)
		if err != nil {
			return nil, err
		}

		a.groups = append(a.groups, n)
	}

	return a, nil
}

func parseID(text string) (uint32, error) {
	n, err := strconv.ParseUint(text, 10, 32)
	if err != nil {
		return 0, fmt.Errorf("parse id of user %s: %w", runnerUser, err)
	}

	return uint32(n), nil
}
