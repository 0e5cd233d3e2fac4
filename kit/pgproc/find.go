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

	// debianRoot holds a folder for each installed version; it is not on PATH.
	debianRoot = "/usr/lib/postgresql"
)

// ErrNoPostgres is returned when PostgreSQL's programs are not there.
var ErrNoPostgres = errors.New("no PostgreSQL server is installed")

// FindBinaries returns the folder that holds initdb and postgres: that of initdb on
// PATH, links followed, else the newest below /usr/lib/postgresql.
func FindBinaries() (string, error) {
	for _, dir := range candidates() {
		if isProgram(filepath.Join(dir, initdb)) && isProgram(filepath.Join(dir, postgres)) {
			return dir, nil
		}
	}

	return "", fmt.Errorf("%w: initdb and postgres are neither on PATH nor in %s/*/bin: install it (apt-get install postgresql)",
		ErrNoPostgres, debianRoot)
}

func candidates() []string {
	var dirs []string

	if path, err := exec.LookPath(initdb); err == nil {
		// initdb looks for its share folder beside what it is itself.
		if followed, err := filepath.EvalSymlinks(path); err == nil {
			path = followed
		}

		dirs = append(dirs, filepath.Dir(path))
	}

	found, err := filepath.Glob(filepath.Join(debianRoot, "*", "bin"))
	if err != nil {
		return dirs
	}

	slices.SortFunc(found, func(a, b string) int { return version(b) - version(a) })

	return append(dirs, found...)
}

// version of /usr/lib/postgresql/15/bin is 15.
func version(dir string) int {
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
