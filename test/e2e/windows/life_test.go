// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package windows

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/api/hyperfleet/v1alpha1"
	"github.com/hyperfleet/hyperfleet/sim/execguest"
	"github.com/hyperfleet/hyperfleet/sim/forge/control"
	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/fleet"
	"github.com/hyperfleet/hyperfleet/test/kube"
)

// lifeTimeout limits each wait. It allows for a busy host, on which a program under Wine takes a minute to start.
const lifeTimeout = 8 * time.Minute

// runScript starts the simulated runner of GitHub, as the runner's own run.cmd starts its listener.
const runScript = "@echo off\r\n\"%~dp0bin\\Runner.Listener.exe\" runner --root \"%~dp0.\" run %*\r\nexit /b %ERRORLEVEL%\r\n"

// A job runs from its webhook to the deletion of its machine, on a simulated Proxmox VE whose template has ostype win11.
func TestLifeOnWindows(t *testing.T) { //nolint:paralleltest // the tests share one Windows installation
	env := kube.Start(t, kube.WithCRDs("../../../deploy/crds"))
	w := newWine(t)
	w.installImage()

	model := fleet.Model()
	model.Templates[0].Config = map[string]string{"ostype": "win11"}
	model.Guest = pve.Guest{Kind: pve.GuestExec, Wine: w.program, ImageDir: w.prefix, WorkDir: t.TempDir()}

	f := fleet.New(t, env, fleet.Options{Model: model})
	f.Timeout = lifeTimeout

	template := f.NewTemplate()
	template.Spec.Bootstrap.Method = v1alpha1.BootstrapCallback
	template.Spec.Bootstrap.Config.GitHub.Runner = &v1alpha1.GitHubRunner{
		InstallPath: `C:\actions runner`, WorkDir: `C:\runner work`,
	}

	pool := f.NewPool(1)
	pool.Spec.Workload.Config.GitHub.Labels = []string{"windows"}

	f.CreateCluster(f.NewCluster())
	f.Create(template)
	f.Create(pool)
	f.Start()
	f.EventuallyReady(template)

	if template.Status.OS != v1alpha1.OSWindows {
		t.Fatalf("status.os is %q, want %s", template.Status.OS, v1alpha1.OSWindows)
	}

	f.EventuallyReady(pool)
	f.GitHub.Queue(control.JobSpec{Labels: []string{"windows"}, Command: "echo on drive %SystemDrive%"})

	console := ""

	f.Eventually("the success of the job", func() (bool, string) {
		for _, vm := range f.PVE.Snapshot().VMs {
			if text := f.PVE.Console(vm.VMID); len(text) > len(console) {
				console = text
			}
		}

		over := f.GitHub.State().Jobs[0]

		return over.Status == "completed", over.Status + "\n" + console
	})

	if over := f.GitHub.State().Jobs[0]; over.Conclusion != "success" {
		t.Errorf("the job ended with %s", over.Conclusion)
	}

	for _, line := range []string{"starting " + execguest.WindowsProgram, "Listening for Jobs", "on drive C:"} {
		if !strings.Contains(console, line) {
			t.Errorf("the console does not contain %q:\n%s", line, console)
		}
	}

	f.EventuallyClean()
	f.Eventually("the end of all processes of the machine", func() (bool, string) {
		left := findProcesses(model.Guest.WorkDir)

		return len(left) == 0, strings.Join(left, "\n")
	})
}

// installImage makes the installation the image of a template, as the guide describes.
func (w *wine) installImage() {
	w.t.Helper()

	for name, program := range map[string]string{
		"Program Files/HyperFleet/bootstrap-service.exe": w.build("../../../cmd/bootstrap-service", "bootstrap-service.exe"),
		"actions runner/bin/Runner.Listener.exe":         w.build("../../../cmd/standin", "standin.exe"),
	} {
		text, err := os.ReadFile(program)
		if err != nil {
			w.t.Fatal(err)
		}

		w.write(filepath.Join(w.drive(), name), text)
	}

	w.write(filepath.Join(w.drive(), "actions runner", "run.cmd"), []byte(runScript))
	w.stop()
}

// findProcesses returns the command lines of the processes whose environment contains the text.
func findProcesses(text string) []string {
	var out []string

	files, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range files {
		if env, err := os.ReadFile(file); err != nil || !bytes.Contains(env, []byte(text)) {
			continue
		}

		if line, err := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline")); err == nil && len(line) > 0 {
			out = append(out, string(bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}

	return out
}
