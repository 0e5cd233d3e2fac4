// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
)

// packSite builds the documentation site from the sources of the release and packs it.
func (r *release) packSite(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "hyperfleet-site-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the folder is temporary

	cmd := exec.CommandContext(ctx, "go", "run", "-mod=readonly", "./hack/site", "-dist", dir, "-version", r.version)
	cmd.Dir = r.root
	cmd.Env = append(environWithout("GOFLAGS", "GOOS", "GOARCH"), "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build site: %w\n%s", err, out)
	}

	name := "hyperfleet-docs-" + r.plainVersion()

	entries, err := readFolder(dir, name)
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	return r.pack(name+".tgz", entries)
}
