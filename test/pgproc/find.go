// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pgproc

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	initdb   = "initdb"
	postgres = "postgres"

	// debianRoot contains a folder for each installed version. These folders are not on PATH.
	debianRoot = "/usr/lib/postgresql"
)

// ErrPostgresNotFound is the error if PostgreSQL's programs are missing.
var ErrPostgresNotFound = errors.New("no PostgreSQL server is installed")

// FindBinaries returns the folder that contains initdb and postgres. It checks the folder of initdb
// on PATH, after resolving symbolic links, and then the versions in /usr/lib/postgresql, the newest
// first.
func FindBinaries() (string, error) {
	for _, dir := range candidateDirs() {
		if isProgram(filepath.Join(dir, initdb)) && isProgram(filepath.Join(dir, postgres)) {
			return dir, nil
		}
	}

	return "", fmt.Errorf("%w: initdb and postgres are neither on PATH nor in %s/*/bin: "+
		"install PostgreSQL (apt-get install postgresql)", ErrPostgresNotFound, debianRoot)
}

func candidateDirs() []string {
	var dirs []string

	if path, err := exec.LookPath(initdb); err == nil {
		// initdb finds its share folder relative to its own path.
		if resolved, err := filepath.EvalSymlinks(path); err == nil {
			path = resolved
		}

		dirs = append(dirs, filepath.Dir(path))
	}

	found, err := filepath.Glob(filepath.Join(debianRoot, "*", "bin"))
	if err != nil {
		return dirs
	}

	slices.SortFunc(found, func(a, b string) int { return majorVersion(b) - majorVersion(a) })

	return append(dirs, found...)
}

// majorVersion returns the version in a path: 15 for /usr/lib/postgresql/15/bin. It returns 0 if
// the path has no version.
func majorVersion(dir string) int {
	major, _, _ := strings.Cut(filepath.Base(filepath.Dir(dir)), ".")
	number, err := strconv.Atoi(major)
	if err != nil {
		return 0
	}

	return number
}

func isProgram(path string) bool {
	info, err := os.Stat(path)

	return err == nil && info.Mode().IsRegular() && info.Mode().Perm()&0o111 != 0
}
