// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
)

// Exec is a guest that is a program of this machine: the bootstrap service, with the
// configuration that the machine's cloud-init ISO holds.
type Exec struct {
	// Program to run.
	Program string
	// Image is the directory that each machine's root is a copy of; may be empty.
	Image string
	// WorkDir is where the roots are made, a directory for each machine's instance.
	WorkDir string
}

// Guest is what Options.Guest takes. Without a configuration to run with, a machine stays
// up idle.
func (e Exec) Guest(g Guest) {
	root, err := e.root(g)
	if err == nil {
		err = execguest.CloudInit(g.Drive, root, g.Log)
	}

	if err != nil {
		g.Log("cloud-init: %s", err)
	}

	config := filepath.Join(root, execguest.Config)
	if _, missing := os.Stat(config); err != nil || missing != nil {
		g.Log("guest: no %s, nothing to run", execguest.Config)
		<-g.Context.Done()

		return
	}

	program := execguest.Program{
		Path: e.Program, Config: config, Root: root, Console: logWriter(g.Log), Running: func(int) {},
	}
	if err := program.Run(g.Context); err != nil {
		g.Log("guest: %s", err)
	}

	g.Log("guest: power off")
}

func (e Exec) root(g Guest) (string, error) {
	root, err := os.MkdirTemp(e.WorkDir, g.Name+"-")
	if err != nil {
		return "", fmt.Errorf("make root directory: %w", err)
	}

	if e.Image == "" {
		return root, nil
	}

	return root, execguest.CopyTree(e.Image, root)
}

// logWriter writes what a program prints to the console.
type logWriter func(format string, args ...any)

func (w logWriter) Write(p []byte) (int, error) {
	w("%s", p)

	return len(p), nil
}
