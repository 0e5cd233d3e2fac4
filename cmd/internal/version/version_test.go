// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package version

import (
	"runtime/debug"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestFrom(t *testing.T) {
	t.Parallel()

	build := &debug.BuildInfo{
		Main: debug.Module{Version: "v1.2.3"},
		Settings: []debug.BuildSetting{
			{Key: "vcs.revision", Value: "abc"},
			{Key: "vcs.time", Value: "2026-01-02T03:04:05Z"},
			{Key: "vcs.modified", Value: "true"},
		},
	}
	want := Info{
		Version: "v1.2.3", Commit: "abc", CommitTime: "2026-01-02T03:04:05Z", Modified: true, Go: "go1", Platform: "p/q",
	}

	if diff := cmp.Diff(want, Info{Version: "(devel)", Go: "go1", Platform: "p/q"}.withBuildInfo(build)); diff != "" {
		t.Error(diff)
	}
}

// TestLinked checks that the linker's values override the build information.
func TestLinked(t *testing.T) {
	t.Cleanup(func() { tag, commit, commitTime, modified = "", "", "", "" })

	seen := Info{Version: "v0.0.0-2026", Commit: "abc", CommitTime: "2026-01-02T03:04:05Z", Modified: true}
	if diff := cmp.Diff(seen, seen.withLinkedValues()); diff != "" {
		t.Error(diff)
	}

	tag, commit, commitTime = "v1.2.3", "def", "2026-02-03T04:05:06Z"
	want := Info{Version: "v1.2.3", Commit: "def", CommitTime: "2026-02-03T04:05:06Z"}

	if diff := cmp.Diff(want, seen.withLinkedValues()); diff != "" {
		t.Error(diff)
	}

	if modified = "true"; !seen.withLinkedValues().Modified {
		t.Error("Modified is false for a tree with changes")
	}
}
