// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// programNames are what users and machines run. The demo and the simulators are no part of it.
func programNames() []string {
	return []string{"hyperfleet", "hyperfleet-platform", "bootstrap-service"}
}

func programFile(name, arch string) string { return name + "-linux-" + arch }

// made are the programs and what each is made for. The bootstrap service is for machines, which
// one operator has of both architectures.
func (r *release) made() [][2]string {
	var out [][2]string

	for _, name := range programNames() {
		arch := r.arch
		if name == "bootstrap-service" {
			arch = []string{"amd64", "arm64"}
		}

		for _, arch := range arch {
			out = append(out, [2]string{name, arch})
		}
	}

	return out
}

// programs builds them, out of the module cache alone.
func (r *release) programs() error {
	for _, one := range r.made() {
		if err := r.program(one[0], one[1]); err != nil {
			return err
		}
	}

	return nil
}

func (r *release) program(name, arch string) error {
	file, err := absolute(r.file(programFile(name, arch)))
	if err != nil {
		return err
	}

	cmd := exec.Command("go", "build", "-trimpath", "-mod=readonly", "-buildvcs=false", "-ldflags", r.ldflags,
		"-o", file, "./cmd/"+name)
	cmd.Dir = r.root
	// What the environment says of how to build would make other bytes.
	cmd.Env = append(environ("GOFLAGS", "GOAMD64", "GOARM64", "GOEXPERIMENT", "GOFIPS140"),
		"CGO_ENABLED=0", "GOOS=linux", "GOARCH="+arch, "GOPROXY=off", "GOWORK=off")

	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build %s for %s: %w\n%s", name, arch, err, out)
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
