// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package kubevirt

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/hyperfleet/hyperfleet/sim/execguest"
)

// Exec simulates a guest by a program on the test's own host. The program is the bootstrap service, with
// the configuration from the machine's cloud-init ISO.
type Exec struct {
	// Program is the path of the program.
	Program string
	// Image is a directory that is copied into the root directory of each machine. It may be empty.
	Image string
	// WorkDir is the directory in which each machine's instance gets its root directory.
	WorkDir string
}

// Guest runs the program for one machine. It is a value for Options.Guest. If the cloud-init ISO has no
// configuration for the program, the machine stays on and runs nothing.
func (e Exec) Guest(g Guest) {
	root, err := e.createRoot(g)
	if err == nil {
		err = execguest.ApplyCloudInit(g.Drive, root, g.Log)
	}

	if err != nil {
		g.Log("cloud-init: %s", err)
	}

	config := filepath.Join(root, execguest.ConfigPath)
	if _, missing := os.Stat(config); err != nil || missing != nil {
		g.Log("guest: %s does not exist, so the guest runs nothing", execguest.ConfigPath)
		<-g.Context.Done()

		return
	}

	program := execguest.Program{
		Path: e.Program, Config: config, Root: root, Console: logWriter(g.Log), ReportGroup: func(int) {},
	}
	if err := program.Run(g.Context); err != nil {
		g.Log("guest: %s", err)
	}

	g.Log("guest: power off")
}

func (e Exec) createRoot(g Guest) (string, error) {
	root, err := os.MkdirTemp(e.WorkDir, g.Name+"-")
	if err != nil {
		return "", fmt.Errorf("create root directory: %w", err)
	}

	if e.Image == "" {
		return root, nil
	}

	return root, execguest.CopyTree(e.Image, root)
}

// logWriter writes the output of a program to the console.
type logWriter func(format string, args ...any)

func (w logWriter) Write(p []byte) (int, error) {
	w("%s", p)

	return len(p), nil
}
