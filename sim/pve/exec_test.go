// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/test/timing"
)

// guestProgram is the main function of the test binary when it is a guest's program. It reports its
// environment and then does what its configuration defines.
func guestProgram(config, root string) int {
	raw, err := os.ReadFile(config)
	if err != nil {
		fmt.Println("config:", err)
		return 1
	}
	var c struct{ Do, Say string }
	if err := json.Unmarshal(raw, &c); err != nil {
		fmt.Println("config:", err)
		return 1
	}
	host, _ := os.ReadFile(filepath.Join(root, "etc", "hostname"))
	image, _ := os.ReadFile(filepath.Join(root, "opt", "actions-runner", "run.sh"))
	wd, _ := os.Getwd()
	fmt.Printf("say=%s env=%d host=%s image=%q inroot=%v\n",
		c.Say, len(os.Environ()), strings.TrimSpace(string(host)), image, wd == root)
	if c.Do == "term" {
		stop := make(chan os.Signal, 1)
		signal.Notify(stop, syscall.SIGTERM)
		fmt.Println("ready")
		<-stop
		fmt.Println("terminated in good order")
		return 0
	}
	if c.Do == "hang" {
		child := exec.Command("/bin/sleep", "600")
		if err := child.Start(); err != nil {
			fmt.Println("child:", err)
		}
		fmt.Println("hanging")
		select {}
	}
	return 0
}

func newExecModel(t *testing.T) func(*pve.Model) {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	image := t.TempDir()
	if err := os.MkdirAll(filepath.Join(image, "opt", "actions-runner"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(image, "opt", "actions-runner", "run.sh"), []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return func(m *pve.Model) {
		m.Guest = pve.Guest{Kind: pve.GuestExec, Program: self, ImageDir: image, WorkDir: t.TempDir()}
	}
}

// newUserData returns user data that writes a configuration for the program.
func newUserData(do string) string {
	conf := base64.StdEncoding.EncodeToString([]byte(`{"do":"` + do + `","say":"hello"}`))
	return "#cloud-config\nhostname: guest-1\nwrite_files:\n- path: /etc/hyperfleet/runner-config.json\n" +
		"  encoding: b64\n  permissions: '0600'\n  content: " + conf + "\n"
}

// bootGuest starts a clone with an ISO in its drive.
func bootGuest(t *testing.T, label, userData string) *rawClient {
	t.Helper()
	a := startCluster(t, newExecModel(t))
	a.clone("1000", nil)
	iso := buildISO(t, label, map[string]string{"user-data": userData, "meta-data": "instance-id: i\n"})
	a.waitForTask(a.upload("pve1", "local", "iso", "seed.iso", iso).data)
	a.mustDo("PUT", confPath, formData{"ide2": "local:iso/seed.iso,media=cdrom"})
	a.mustRunTask("POST", powerPath+"start", nil)
	return a
}

// waitForPowerOff waits until VM 1000 is stopped.
func (a *rawClient) waitForPowerOff() {
	a.t.Helper()
	timing.WaitUntil(a.t, "VM 1000 is stopped", func() bool { v, _ := a.s.Snapshot().VM(1000); return v.Status == "stopped" })
}

// TestExecGuest runs a real program with the data of an uploaded ISO. When the program exits, the
// guest powers off.
func TestExecGuest(t *testing.T) {
	t.Parallel()
	a := bootGuest(t, "cidata", newUserData("exit"))
	a.waitForPowerOff()
	log := a.s.Console(1000)
	for _, want := range []string{"say=hello env=0 host=guest-1", `image="#!/bin/sh\n"`, "inroot=true", "power off"} {
		if !strings.Contains(log, want) {
			t.Errorf("console lacks %q:\n%s", want, log)
		}
	}
}

// TestExecGuestBuiltin uses the drive that Proxmox VE generates, with user data from a snippet.
func TestExecGuestBuiltin(t *testing.T) {
	t.Parallel()
	change := newExecModel(t)
	a := startCluster(t, func(m *pve.Model) {
		change(m)
		m.Storages[0].Snippets = map[string]string{"user.yaml": newUserData("exit")}
	})
	a.clone("1000", nil)
	a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"cicustom": "user=local:snippets/user.yaml", "ipconfig0": "ip=dhcp"})
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	a.waitForPowerOff()
	if log := a.s.Console(1000); !strings.Contains(log, "say=hello") {
		t.Errorf("console:\n%s", log)
	}
}

// TestExecGuestKilled checks that stopping a VM ends its program and all child processes. pvetest
// checks that none remains.
func TestExecGuestKilled(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"stop", "close"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			a := bootGuest(t, "CIDATA", newUserData("hang"))
			timing.WaitUntil(t, "program", func() bool { return strings.Contains(a.s.Console(1000), "hanging") })
			if how == "close" {
				return
			}
			a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/stop", nil)
			a.mustRunTask("DELETE", "/nodes/pve1/qemu/1000", nil)
			timing.WaitUntil(t, "all processes have ended", func() bool { return len(a.s.LeakedProcesses()) == 0 })
		})
	}
}

// TestExecGuestShutdown checks that the program can end by itself after the power button.
func TestExecGuestShutdown(t *testing.T) {
	t.Parallel()
	a := bootGuest(t, "cidata", newUserData("term"))
	timing.WaitUntil(t, "program", func() bool { return strings.Contains(a.s.Console(1000), "ready") })
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/shutdown", nil)
	if log := a.s.Console(1000); !strings.Contains(log, "terminated in good order") {
		t.Errorf("console:\n%s", log)
	}
	if v, _ := a.s.Snapshot().VM(1000); v.Status != "stopped" {
		t.Errorf("status %s", v.Status)
	}
}

// TestExecGuestWithoutData checks that a VM without data stays up and runs no program.
func TestExecGuestWithoutData(t *testing.T) {
	t.Parallel()
	a := startCluster(t, newExecModel(t))
	a.clone("1000", nil)
	a.mustDo("PUT", "/nodes/pve1/qemu/1000/config", formData{"ide2": "none,media=cdrom"})
	a.mustRunTask("POST", "/nodes/pve1/qemu/1000/status/start", nil)
	timing.WaitUntil(t, "the console has the message", func() bool { return strings.Contains(a.s.Console(1000), "nothing to run") })
	if v, _ := a.s.Snapshot().VM(1000); v.Status != "running" {
		t.Errorf("status %s", v.Status)
	}
}
