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

// site packs the documentation as a site, of the sources that the release is made of.
func (r *release) site(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "hyperfleet-site-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // what is left of it is in a folder for such things

	cmd := exec.CommandContext(ctx, "go", "run", "-mod=readonly", "./hack/site", "-dist", dir, "-version", r.version)
	cmd.Dir = r.root
	cmd.Env = append(environ("GOFLAGS", "GOOS", "GOARCH"), "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("make it: %w\n%s", err, out)
	}

	name := "hyperfleet-docs-" + r.plain()

	entries, err := files(dir, name)
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	return r.pack(name+".tgz", entries)
}
