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

// FindTool returns the path of a program of another project, in bin/ or on PATH. If the program is in
// neither, FindTool runs hack/setup.sh to install the program's group. A test program tries to install each
// group only once.
func FindTool(group, program string) (string, error) {
	if path, err := findInstalled(program); err == nil {
		return path, nil
	}

	if err := ensureGroup(group); err != nil {
		return "", err
	}

	return findInstalled(program)
}

// groups holds the results of the groups that this test program has tried to install.
//
//nolint:gochecknoglobals // the result is the same for all tests of a program
var groups = struct {
	sync.Mutex

	results map[string]error
}{results: map[string]error{}}

func ensureGroup(group string) error {
	groups.Lock()
	defer groups.Unlock()

	if err, known := groups.results[group]; known {
		return err
	}

	groups.results[group] = installGroup(group)

	return groups.results[group]
}

func findInstalled(program string) (string, error) {
	if dir, err := procrun.FindBinaries(program); err == nil {
		return filepath.Join(dir, program), nil
	}

	return exec.LookPath(program)
}

func installGroup(group string) error {
	root, err := procrun.FindModuleRoot()
	if err != nil {
		return fmt.Errorf("install tools %s: %w", group, err)
	}

	cmd := exec.Command(filepath.Join(root, "hack", "setup.sh"), group) //nolint:noctx // the test program's timeout bounds it
	// Build the tools with Go's default settings, not with the settings of the tests.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=", "GOFLAGS=")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("install tools %s: hack/setup.sh: %w: %s", group, err, strings.TrimSpace(string(out)))
	}

	return nil
}
