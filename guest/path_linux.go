// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package guest

import "path"

// executableSuffix ends the names of programs.
const executableSuffix = ""

// IsRoot reports whether a path is the root of the file system.
func IsRoot(p string) bool { return path.Clean(p) == "/" }

func isAbsolute(p string) bool { return path.IsAbs(p) }

// absolute returns an absolute path as it is.
func absolute(p string) string { return p }

// scriptName returns the name of a script as it is.
func scriptName(name string) string { return name }
