// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"cmp"
	"fmt"
	"runtime"
	"runtime/debug"
)

// Values that the linker sets in release builds, because go build does not see the tag in every checkout.
// They override the build information.
//
//nolint:gochecknoglobals // the linker can set variables only
var (
	tag, commit, commitTime string
	modified                string
)

// Info describes this executable. `hyperfleet version -o json` prints its JSON form.
type Info struct {
	// Version is a tag, the output of git describe, a pseudo-version, or "(devel)".
	Version string `json:"version"`
	// Commit is the commit of the source code. It is empty if the build had no access to Git.
	Commit string `json:"commit"`
	// CommitTime is the time of the commit in RFC 3339.
	CommitTime string `json:"commitTime,omitempty"`
	// Modified is true if the working tree had uncommitted changes.
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read returns the Info of this executable, from the linker's values and the build information.
func Read() Info {
	info := Info{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}

	if build, ok := debug.ReadBuildInfo(); ok {
		info = info.withBuildInfo(build)
	}

	return info.withLinkedValues()
}

// withLinkedValues overrides fields by the values that the linker has set.
func (i Info) withLinkedValues() Info {
	i.Version = cmp.Or(tag, i.Version)

	if commit != "" {
		i.Commit, i.CommitTime, i.Modified = commit, commitTime, modified == "true"
	}

	return i
}

func (i Info) withBuildInfo(build *debug.BuildInfo) Info {
	if build.Main.Version != "" {
		i.Version = build.Main.Version
	}

	for _, setting := range build.Settings {
		switch setting.Key {
		case "vcs.revision":
			i.Commit = setting.Value
		case "vcs.time":
			i.CommitTime = setting.Value
		case "vcs.modified":
			i.Modified = setting.Value == "true"
		}
	}

	return i
}

// String returns the text form, with one line for each field.
func (i Info) String() string {
	commit := i.Commit
	if commit == "" {
		commit = "unknown"
	}

	if i.Modified {
		commit += " (modified)"
	}

	return fmt.Sprintf("hyperfleet %s\ncommit     %s\ngo         %s\nplatform   %s", i.Version, commit, i.Go, i.Platform)
}
