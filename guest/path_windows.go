// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
)

// executableSuffix ends the names of programs.
const executableSuffix = ".exe"

// IsRoot reports whether a path is the root of a drive, or / for the system's drive.
func IsRoot(p string) bool {
	rest := strings.TrimPrefix(filepath.Clean(p), filepath.VolumeName(p))

	return rest == `\`
}

func isAbsolute(p string) bool { return filepath.IsAbs(p) || strings.HasPrefix(p, "/") }

// absolute returns the path on the system's drive if it has no drive.
func absolute(p string) string {
	if filepath.VolumeName(p) != "" {
		return p
	}

	return cmp.Or(os.Getenv("SystemDrive"), "C:") + filepath.FromSlash(p)
}

// scriptName returns the name of a script for Windows: the configuration of a machine has run.sh and config.sh by
// default.
func scriptName(name string) string {
	if base, ok := strings.CutSuffix(name, ".sh"); ok {
		return base + ".cmd"
	}

	return name
}
