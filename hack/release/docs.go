// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"time"
)

// packSite builds the documentation site from the sources of the release and packs it.
func (r *release) packSite(ctx context.Context) error {
	name := "hyperfleet-docs-" + r.plainVersion()

	return r.packOutput(ctx, name+".tgz", name, "./hack/site", "-version", r.version)
}

// packManualPages packs the manual pages of the programs, with their paths below a prefix such as /usr/local.
func (r *release) packManualPages(ctx context.Context) error {
	return r.packOutput(ctx, "hyperfleet-man-"+r.plainVersion()+".tgz", "share/man/man1",
		"./hack/mandoc", "-version", r.version, "-time", r.time.UTC().Format(time.RFC3339))
}

// packOutput runs a program of the checkout, which writes files to the folder that its flag -dist names, and
// packs these files into the given folder of an archive.
func (r *release) packOutput(ctx context.Context, archive, folder, program string, args ...string) error {
	dir, err := os.MkdirTemp("", "hyperfleet-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the folder is temporary

	// The flags of the compiler are those of buildProgram, so that packages are compiled once.
	cmd := exec.CommandContext(ctx, "go", append([]string{
		"run", "-trimpath", "-mod=readonly", "-buildvcs=false", "-tags", r.tags, program, "-dist", dir,
	}, args...)...)
	cmd.Dir = r.root
	cmd.Env = append(environWithout("GOFLAGS", "GOOS", "GOARCH"), "CGO_ENABLED=0", "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("run %s: %w\n%s", program, err, out)
	}

	entries, err := readFolder(dir, folder)
	if err != nil {
		return err
	}

	slices.SortFunc(entries, byName)

	return r.pack(archive, entries)
}
