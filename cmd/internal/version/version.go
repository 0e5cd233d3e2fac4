// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// What releases are linked with: go build does not see the tag in every checkout. Each goes
// before what the build information says.
//
//nolint:gochecknoglobals // the linker sets variables alone
var (
	tag, commit, commitTime string
	modified                string
)

// Info is what is known of this executable. Its JSON form is what
// `hyperfleet version --output json` prints.
type Info struct {
	// Version is a tag, a tag and what came since, a pseudo-version, or "(devel)".
	Version string `json:"version"`
	// Commit it was built from; empty where the build did not see one.
	Commit string `json:"commit"`
	// CommitTime in RFC 3339.
	CommitTime string `json:"commitTime,omitempty"`
	// Modified says that the tree had changes of its own.
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// Read gives the executable's Info from its build information.
func Read() Info {
	info := Info{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}

	if build, ok := debug.ReadBuildInfo(); ok {
		info = info.from(build)
	}

	return info.linked()
}

// linked goes by what the linker was told.
func (i Info) linked() Info {
	i.Version = cmp.Or(tag, i.Version)

	if commit != "" {
		i.Commit, i.CommitTime, i.Modified = commit, commitTime, modified == "true"
	}

	return i
}

func (i Info) from(build *debug.BuildInfo) Info {
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

// Print prints it as output says: text or json.
func (i Info) Print(w io.Writer, output string) error {
	var err error

	switch output {
	case "json":
		err = json.NewEncoder(w).Encode(i)
	case "text":
		_, err = fmt.Fprintln(w, i)
	default:
		return fmt.Errorf("print version: unknown output %q: use text or json", output)
	}

	if err != nil {
		return fmt.Errorf("print version: %w", err)
	}

	return nil
}

// String is the text.
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
