// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package procrun

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// EnvAssets names the environment variable that points at a folder with the
// binaries, as controller-runtime's envtest uses it.
const EnvAssets = "KUBEBUILDER_ASSETS"

// ErrNoBinaries is returned when programs that `make setup` brings are not there.
var ErrNoBinaries = errors.New("no binaries")

// FindBinaries returns the folder that holds all the named programs: that of
// KUBEBUILDER_ASSETS, else that of the running program, else the nearest bin folder
// next to a go.mod at or above the working directory.
func FindBinaries(names ...string) (string, error) {
	var tried []string

	for _, dir := range candidates() {
		if holds(dir, names) {
			return dir, nil
		}

		tried = append(tried, dir)
	}

	return "", fmt.Errorf("%w: %s not found together in %s: run make setup, or set %s",
		ErrNoBinaries, strings.Join(names, ", "), strings.Join(tried, ", "), EnvAssets)
}

func candidates() []string {
	var dirs []string

	if assets := os.Getenv(EnvAssets); assets != "" {
		dirs = append(dirs, assets)
	}

	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}

	dir, err := os.Getwd()
	for err == nil {
		if _, statErr := os.Stat(filepath.Join(dir, "go.mod")); statErr == nil {
			return append(dirs, filepath.Join(dir, "bin"))
		}

		parent := filepath.Dir(dir)
		if parent == dir {
			break
		}

		dir = parent
	}

	return dirs
}

// holds says whether every name is an executable file in dir.
func holds(dir string, names []string) bool {
	const executable = 0o111

	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&executable == 0 {
			return false
		}
	}

	return true
}
