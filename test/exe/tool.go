// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package exe

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"github.com/hyperfleet/hyperfleet/kit/procrun"
)

// Tool gives the path of a program of another project: in bin/ or on PATH. Where it is in neither,
// hack/setup.sh brings the group that it belongs to, while other tests run. What could not be had in
// one test is not asked for again in the same program.
func Tool(group, program string) (string, error) {
	if path, err := find(program); err == nil {
		return path, nil
	}

	if err := brought(group); err != nil {
		return "", err
	}

	return find(program)
}

// groups are those that were asked for, and what came of it.
//
//nolint:gochecknoglobals // what could not be had is the same for all tests of a program
var groups = struct {
	sync.Mutex

	tried map[string]error
}{tried: map[string]error{}}

func brought(group string) error {
	groups.Lock()
	defer groups.Unlock()

	if err, is := groups.tried[group]; is {
		return err
	}

	groups.tried[group] = bring(group)

	return groups.tried[group]
}

func find(program string) (string, error) {
	if dir, err := procrun.FindBinaries(program); err == nil {
		return filepath.Join(dir, program), nil
	}

	return exec.LookPath(program)
}

func bring(group string) error {
	root, err := checkout()
	if err != nil {
		return fmt.Errorf("bring %s: %w", group, err)
	}

	cmd := exec.Command(filepath.Join(root, "hack", "setup.sh"), group) //nolint:noctx // the test program's timeout bounds it
	// How the tests are built is nothing for the tools.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=", "GOFLAGS=")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("bring %s: hack/setup.sh: %w: %s", group, err, strings.TrimSpace(string(out)))
	}

	return nil
}
