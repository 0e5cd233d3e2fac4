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

// programNames returns the programs of a release for Linux. Of the simulators, only that of Proxmox VE is of use to
// others. The demo is not part of a release either.
func programNames() []string {
	return []string{"hyperfleet", "hyperfleet-platform", "bootstrap-service", "pvesim"}
}

// clientNames returns the programs that are also built for the platforms of users' own machines.
func clientNames() []string { return []string{"hyperfleet"} }

// platform is the operating system and the architecture of a program.
type platform struct{ os, arch string }

// program is a program for one platform.
type program struct {
	name string
	platform
}

// file returns the name of the program's file in the release.
func (m program) file() string {
	name := m.name + "-" + m.os + "-" + m.arch
	if m.os == "windows" {
		name += ".exe"
	}

	return name
}

func programFile(name, arch string) string { return program{name, platform{"linux", arch}}.file() }

// programs returns all programs of the release. The bootstrap service is always built for both architectures,
// because one operator can serve machines of both.
func (r *release) programs() []program {
	var out []program

	for _, name := range programNames() {
		arch := r.arch
		if name == "bootstrap-service" {
			arch = []string{"amd64", "arm64"}
		}

		for _, arch := range arch {
			out = append(out, program{name, platform{"linux", arch}})
		}
	}

	// Machines with Windows have the service in their template.
	out = append(out, program{"bootstrap-service", platform{"windows", "amd64"}})

	for _, name := range clientNames() {
		for _, client := range r.clients {
			out = append(out, program{name, client})
		}
	}

	return out
}

// parsePlatforms parses a list of platforms, for example "darwin/arm64 windows/amd64". It rejects platforms
// of Linux.
func parsePlatforms(text string) ([]platform, error) {
	var out []platform

	for name := range strings.FieldsSeq(text) {
		system, arch, hasSlash := strings.Cut(name, "/")
		if !hasSlash || system == "" || arch == "" || system == "linux" {
			return nil, fmt.Errorf("platform %q must have the form darwin/arm64: set Linux architectures with -arch", name)
		}

		out = append(out, platform{system, arch})
	}

	return out, nil
}

// buildPrograms builds all programs. It uses the module cache and no network.
func (r *release) buildPrograms(ctx context.Context) error {
	for _, m := range r.programs() {
		if err := r.buildProgram(ctx, m); err != nil {
			return err
		}
	}

	return nil
}

func (r *release) buildProgram(ctx context.Context, m program) error {
	file, err := absolutePath(r.file(m.file()))
	if err != nil {
		return err
	}

	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-mod=readonly", "-buildvcs=false", "-tags", r.tags,
		"-ldflags", r.ldflags, "-o", file, "./cmd/"+m.name)
	cmd.Dir = r.root
	// Remove environment variables that would change the build output.
	cmd.Env = append(environWithout("GOFLAGS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140"),
		"CGO_ENABLED=0", "GOOS="+m.os, "GOARCH="+m.arch, "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s/%s: %w\n%s", m.name, m.os, m.arch, err, out)
	}

	return nil
}

// environWithout returns the environment without some of its variables.
func environWithout(names ...string) []string {
	var out []string

	for _, variable := range os.Environ() {
		name, _, _ := strings.Cut(variable, "=")

		isRemoved := false
		for _, removed := range names {
			isRemoved = isRemoved || name == removed
		}

		if !isRemoved {
			out = append(out, variable)
		}
	}

	return out
}
