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

// EnvAssets is the environment variable with the folder of the binaries. controller-runtime's
// envtest uses the same variable.
const EnvAssets = "KUBEBUILDER_ASSETS"

// ErrBinariesNotFound is the error if programs that `make setup` installs are missing.
var ErrBinariesNotFound = errors.New("binaries not found")

// FindBinaries returns a folder that contains all named programs. It checks the folder of
// KUBEBUILDER_ASSETS, then the folder of the running program, and then the nearest bin folder next
// to a go.mod in the working directory or above.
func FindBinaries(names ...string) (string, error) {
	var checked []string

	for _, dir := range candidateDirs() {
		if hasPrograms(dir, names) {
			return dir, nil
		}

		checked = append(checked, dir)
	}

	return "", fmt.Errorf("%w: no folder contains all of %s (checked %s): run make setup, or set %s",
		ErrBinariesNotFound, strings.Join(names, ", "), strings.Join(checked, ", "), EnvAssets)
}

// candidateDirs returns the directories in which programs are searched: the directory in EnvAssets, the
// directory of this program, and bin in the checkout that contains the working directory.
func candidateDirs() []string {
	var dirs []string

	if assets := os.Getenv(EnvAssets); assets != "" {
		dirs = append(dirs, assets)
	}

	if self, err := os.Executable(); err == nil {
		dirs = append(dirs, filepath.Dir(self))
	}

	if root, err := FindModuleRoot(); err == nil {
		dirs = append(dirs, filepath.Join(root, "bin"))
	}

	return dirs
}

// FindModuleRoot returns the nearest folder with a go.mod: the working directory, or one above it.
func FindModuleRoot() (string, error) {
	root, err := os.Getwd()

	for err == nil {
		if _, statErr := os.Stat(filepath.Join(root, "go.mod")); statErr == nil {
			return root, nil
		}

		if filepath.Dir(root) == root {
			err = os.ErrNotExist
		}

		root = filepath.Dir(root)
	}

	return "", fmt.Errorf("find the module root: %w", err)
}

// hasPrograms returns whether every name is an executable file in dir.
func hasPrograms(dir string, names []string) bool {
	const executable = 0o111

	for _, name := range names {
		info, err := os.Stat(filepath.Join(dir, name))
		if err != nil || !info.Mode().IsRegular() || info.Mode()&executable == 0 {
			return false
		}
	}

	return true
}
