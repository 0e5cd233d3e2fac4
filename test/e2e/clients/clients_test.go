// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package clients_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/pvetest"
)

// runTimeout limits how long one run of a program takes. A busy computer needs a minute for some.
const runTimeout = 5 * time.Minute

// findProgram returns the path of a program that hack/setup.sh clients builds.
func findProgram(t *testing.T, name string) string {
	t.Helper()

	path, err := filepath.Abs("../../../bin/" + name)
	if err != nil {
		t.Fatal(err)
	}

	if _, err := os.Stat(path); err != nil {
		t.Fatalf("find %s: %v: run hack/setup.sh clients", name, err)
	}

	return path
}

// newServer returns a simulated cluster without delays, and the environment of a client that logs in as root.
func newServer(t *testing.T) (*pve.Server, []string) {
	t.Helper()

	m := pve.DefaultModel()
	m.StatusLag = 0
	server := pvetest.New(t, m)

	return server, []string{
		"HOME=" + t.TempDir(), "PATH=" + os.Getenv("PATH"),
		"PROXMOX_VE_ENDPOINT=" + server.URL() + "/", "PROXMOX_VE_USERNAME=" + pve.RootUser,
		"PROXMOX_VE_PASSWORD=" + pve.DefaultPassword, "PROXMOX_VE_INSECURE=true",
		"PM_API_URL=" + server.URL() + "/api2/json", "PM_USER=" + pve.RootUser, "PM_PASS=" + pve.DefaultPassword,
	}
}

// run runs a program in a folder and returns its output. Its exit code must be that one.
func run(t *testing.T, dir string, env []string, input string, code int, program string, args ...string) string {
	t.Helper()

	ctx, cancel := context.WithTimeout(t.Context(), runTimeout)
	defer cancel()

	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdin = dir, env, strings.NewReader(input)

	output, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		t.Fatalf("%s %s: %v, want exit code %d\n%s", filepath.Base(program), strings.Join(args, " "), err, code, output)
	}

	return string(output)
}

// OpenTofu plans and applies a configuration, plans no further change, and destroys everything.
func TestOpenTofu(t *testing.T) {
	t.Parallel()

	tofu, provider := findProgram(t, "tofu"), findProgram(t, "terraform-provider-proxmox")
	server, env := newServer(t)
	dir := t.TempDir()

	if err := os.CopyFS(dir, os.DirFS("testdata")); err != nil {
		t.Fatal(err)
	}

	settings := filepath.Join(dir, "tofurc")
	text := "provider_installation {\n  dev_overrides {\n    \"bpg/proxmox\" = \"" + filepath.Dir(provider) + "\"\n  }\n  direct {}\n}\n"

	if err := os.WriteFile(settings, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}

	if err := os.WriteFile(filepath.Join(dir, "tool.iso"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}

	before := server.Snapshot()
	env = append(env, "TF_CLI_CONFIG_FILE="+settings, "CHECKPOINT_DISABLE=1")
	run(t, dir, env, "", 0, tofu, "plan", "-no-color", "-input=false")
	run(t, dir, env, "", 0, tofu, "apply", "-no-color", "-input=false", "-auto-approve")

	vm, ok := server.Snapshot().VM(5000)
	if !ok || vm.Status != "running" || vm.Pool != "tofu" ||
		!strings.Contains(vm.Config["ipconfig0"], "ip=10.0.0.5/24") || !strings.Contains(vm.Config["ipconfig0"], "gw=10.0.0.1") {
		t.Errorf("the machine is %+v", vm)
	}

	run(t, dir, env, "", 0, tofu, "plan", "-no-color", "-input=false", "-detailed-exitcode") // 2 if something would change
	run(t, dir, env, "", 0, tofu, "destroy", "-no-color", "-input=false", "-auto-approve")

	after := server.Snapshot()
	if len(after.VMs) != len(before.VMs) || len(after.Volumes) != len(before.Volumes) {
		t.Errorf("%d VMs and %d volumes are left of %d and %d", len(after.VMs), len(after.Volumes), len(before.VMs), len(before.Volumes))
	}
}

// Telmate's program makes a machine by cloning and another from nothing, takes a snapshot, and destroys both.
func TestProxmoxAPIGo(t *testing.T) {
	t.Parallel()

	program := findProgram(t, "proxmox-api-go")
	server, env := newServer(t)
	before := len(server.Snapshot().VMs)
	call := func(input string, args ...string) string {
		return run(t, t.TempDir(), env, input, 0, program, append([]string{"-insecure"}, args...)...)
	}

	call("", "createPool", "telmate", "of a test")
	call("", "getPoolInfo", "telmate")
	call(`{"name":"cloned","memory":1024,"cores":2,"sockets":1,"fullclone":0,"pool":"telmate","ciuser":"debian","ipconfig":{"0":"ip=dhcp"}}`,
		"-vmid=5001", "cloneQemu", pve.DefaultTemplate, "pve1")
	call("", "start", "5001")
	call("", "createQemuSnapshot", "cloned", "before")

	if list := call("", "listQemuSnapshot", "cloned"); !strings.Contains(list, "before") {
		t.Errorf("the snapshots are %s", list)
	}

	call("", "rollbackQemu", "cloned", "before")
	call("", "deleteQemuSnapshot", "cloned", "before")
	call(`{"name":"made","memory":512,"cores":1,"sockets":1,"ostype":"l26","scsihw":"virtio-scsi-pci",`+
		`"disks":{"scsi":{"0":{"disk":{"size":4,"storage":"local-lvm","format":"raw"}}}},`+
		`"network":{"0":{"model":"virtio","bridge":"vmbr0"}}}`, "createQemu", "5002", "pve1")
	call("", "getConfig", "5002")
	call("", "migrate", "5002", "pve2")
	call("", "getVmList")
	call("", "getResourceList")
	call("", "destroy", "5001")
	call("", "destroy", "5002")
	call("", "deletePool", "telmate")

	if after := len(server.Snapshot().VMs); after != before {
		t.Errorf("%d VMs are left of %d", after, before)
	}
}
