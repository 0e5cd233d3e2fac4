// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// programNames are what users and machines run. The demo and the simulators are no part of it.
func programNames() []string {
	return []string{"hyperfleet", "hyperfleet-platform", "bootstrap-service"}
}

// clientNames are the programs that people have on their own machines, whatever these are.
func clientNames() []string { return []string{"hyperfleet"} }

// platform is what a program is made for.
type platform struct{ os, arch string }

// made is a program and what it is made for.
type made struct {
	name string
	platform
}

// file is its name in the release.
func (m made) file() string {
	name := m.name + "-" + m.os + "-" + m.arch
	if m.os == "windows" {
		name += ".exe"
	}

	return name
}

func programFile(name, arch string) string { return made{name, platform{"linux", arch}}.file() }

// made are the programs. The bootstrap service is for machines, which one operator has of both
// architectures.
func (r *release) made() []made {
	var out []made

	for _, name := range programNames() {
		arch := r.arch
		if name == "bootstrap-service" {
			arch = []string{"amd64", "arm64"}
		}

		for _, arch := range arch {
			out = append(out, made{name, platform{"linux", arch}})
		}
	}

	for _, name := range clientNames() {
		for _, client := range r.clients {
			out = append(out, made{name, client})
		}
	}

	return out
}

// platforms reads a list such as "darwin/arm64 windows/amd64".
func platforms(text string) ([]platform, error) {
	var out []platform

	for one := range strings.FieldsSeq(text) {
		system, arch, found := strings.Cut(one, "/")
		if !found || system == "" || arch == "" || system == "linux" {
			return nil, fmt.Errorf("%q is not one such as darwin/arm64; those of linux are in -arch", one)
		}

		out = append(out, platform{system, arch})
	}

	return out, nil
}

// programs builds them, out of the module cache alone.
func (r *release) programs(ctx context.Context) error {
	for _, one := range r.made() {
		if err := r.program(ctx, one); err != nil {
			return err
		}
	}

	return nil
}

func (r *release) program(ctx context.Context, m made) error {
	file, err := absolute(r.file(m.file()))
	if err != nil {
		return err
	}

	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-mod=readonly", "-buildvcs=false", "-tags", r.tags,
		"-ldflags", r.ldflags, "-o", file, "./cmd/"+m.name)
	cmd.Dir = r.root
	// What the environment says of how to build would make other bytes.
	cmd.Env = append(environ("GOFLAGS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140"),
		"CGO_ENABLED=0", "GOOS="+m.os, "GOARCH="+m.arch, "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w\n%s", m.name, m.os, m.arch, err, out)
	}

	return nil
}

// environ is the environment without some of its variables.
func environ(without ...string) []string {
	var kept []string

	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")

		drop := false
		for _, unwanted := range without {
			drop = drop || name == unwanted
		}

		if !drop {
			kept = append(kept, variable)
		}
	}

	return kept
}
