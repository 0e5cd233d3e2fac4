// Copyright The HyperFleet Authors.
// SPDX-License-Identifier: Apache-2.0

package pve_test

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hyperfleet/hyperfleet/sim/pve"
	"github.com/hyperfleet/hyperfleet/sim/pve/cli"
	"github.com/hyperfleet/hyperfleet/sim/pve/control"
	"github.com/hyperfleet/hyperfleet/sim/pve/vm/vmtest"
	"github.com/hyperfleet/hyperfleet/test/defaults"
)

const asProgram = "as-pvesim"

// startPVESim starts the command and returns the variables that it exports.
func startPVESim(t *testing.T, args ...string) map[string]string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	cmd := cli.New()
	cmd.SetArgs(args)
	cmd.SetOut(w)
	done := make(chan error, 1)
	go func() {
		err := cmd.ExecuteContext(ctx)
		_ = w.CloseWithError(io.EOF)
		done <- err
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("pvesim: %v", err)
		}
	})
	return readExports(t, r, 5)
}

func readExports(t *testing.T, r io.Reader, n int) map[string]string {
	t.Helper()
	out := map[string]string{}
	lines := bufio.NewScanner(r)
	for len(out) < n && lines.Scan() {
		kv, ok := strings.CutPrefix(lines.Text(), "export ")
		k, v, ok2 := strings.Cut(kv, "=")
		if !ok || !ok2 {
			t.Fatalf("line %q", lines.Text())
		}
		out[k] = strings.Trim(v, "'")
	}
	if len(out) < n {
		t.Fatalf("exports %v, %v", out, lines.Err())
	}
	return out
}

// TestServe connects to the cluster and to its control API with the output of -E.
func TestServe(t *testing.T) {
	t.Parallel()
	env := startPVESim(t, "-E", "--nodes", "5", "--clone-delay", "1s", "--parallel-clones", "1")
	if body := sendRequest(t.Context(), t, env, http.MethodGet, "/nodes", ""); !bytes.Contains(body, []byte(`"pve5"`)) {
		t.Errorf("nodes: %s", body)
	}
	f, err := control.Client{URL: env["PVESIM_CONTROL"]}.Floor(t.Context(), 10, time.Second)
	if err != nil || f.Seconds != 3 {
		t.Errorf("floor %+v %v", f, err)
	}
}

// TestEnvFile writes the lines to the file of -E=FILE.
func TestEnvFile(t *testing.T) {
	t.Parallel()
	name := filepath.Join(t.TempDir(), "env")
	ctx, cancel := context.WithCancel(t.Context())
	cmd := cli.New()
	cmd.SetArgs([]string{"-E=" + name, "--faults", "slow=0.1@1s"})
	done := make(chan error, 1)
	go func() { done <- cmd.ExecuteContext(ctx) }()
	for {
		if raw, err := os.ReadFile(name); err == nil {
			if got := readExports(t, bytes.NewReader(raw), 14); got["PVE_FINGERPRINT"] == "" ||
				got["PVESIM_PID"] != strconv.Itoa(os.Getpid()) || got["PROXMOX_VE_ENDPOINT"] != strings.TrimSuffix(got["PVE_URL"], "api2/json") ||
				got["PM_PASS"] != pve.DefaultPassword {
				t.Errorf("exports %v", got)
			}
			break
		}
		select {
		case err := <-done:
			t.Fatalf("ended: %v", err)
		case <-time.After(10 * time.Millisecond):
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--control", "0.0.0.0:0"}, "loopback"},
		{[]string{"--control", "here"}, "--control"},
		{[]string{"--faults", "nope=1"}, "unknown name"},
		{[]string{"--model", "/does/not/exist"}, "read model"},
		{[]string{"--listen", "127.0.0.1:x"}, "listen on"},
		{[]string{"extra"}, "unknown command"},
		{[]string{"--backend", "xen"}, "must be sim or qemu"},
		{[]string{"--backend", "qemu"}, "requires --image"},
		{[]string{"--backend", "qemu", "--image", "/does/not/exist"}, "no such file"},
		{[]string{"--backend", "qemu", "--image", os.DevNull, "--accel", "warp"}, "use tcg or kvm"},
		{[]string{"--kernel", os.DevNull}, "--kernel requires --backend qemu"},
		{[]string{"--image", os.DevNull}, "--image requires --backend qemu"},
	} {
		cmd := cli.New()
		cmd.SetArgs(tc.args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%v: %v, want %s", tc.args, err, tc.want)
		}
	}
}

// TestKilled kills the program, which then cannot clean up. Its VMs must end too.
func TestKilled(t *testing.T) {
	vmtest.Tools(t)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	model := filepath.Join(t.TempDir(), "model.yaml")
	text := "guest: {workDir: " + t.TempDir() + "}\n" +
		"templates: [{name: t, vmid: 9001, storage: local-lvm, diskSlot: virtio0, cloudInitSlot: ide0}]\n"
	if err := os.WriteFile(model, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, self, asProgram, "-E", "--model", model, "--nodes", "1", "--status-lag", "0s", "--backend", "qemu",
		"--image", vmtest.Disk(t, vmtest.Hangs))
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	env := readExports(t, out, 5)
	ctl := control.Client{URL: env["PVESIM_CONTROL"]}
	sendRequest(ctx, t, env, http.MethodPost, "/nodes/pve1/qemu/9001/clone", "newid=200")
	waitForVM(ctx, t, ctl, func(v pve.VMState) bool { return v.Lock == "" && v.Config["virtio0"] != "" && v.Config["ide0"] != "" })
	sendRequest(ctx, t, env, http.MethodPost, "/nodes/pve1/qemu/200/status/start", "")
	waitForVM(ctx, t, ctl, func(v pve.VMState) bool { return v.Status == "running" })
	for log := ""; !strings.Contains(log, "BOOT"); time.Sleep(20 * time.Millisecond) {
		if log, err = ctl.Log(ctx, 200); err != nil {
			t.Fatal(err)
		}
	}
	pid := findChild(t, cmd.Process.Pid)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	for isAlive(pid) {
		if ctx.Err() != nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			t.Fatalf("QEMU (process %d) has outlived the simulator", pid)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// sendRequest sends a request.
func sendRequest(ctx context.Context, t *testing.T, env map[string]string, method, path, form string) []byte {
	t.Helper()
	client := &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} // #nosec G402 -- pinned in the product, not here
	defer client.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, method, env["PVE_URL"]+path, strings.NewReader(form))
	if err != nil {
		t.Fatal(err)
	}
	if form != "" {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	req.Header.Set("Authorization", fmt.Sprintf("PVEAPIToken=%s=%s", env["PVE_TOKEN_ID"], env["PVE_TOKEN_SECRET"]))
	res, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", path, res.Status, err)
	}
	return body
}

// waitForVM waits until VM 200 has the state.
func waitForVM(ctx context.Context, t *testing.T, ctl control.Client, ok func(pve.VMState) bool) {
	t.Helper()
	for {
		state, err := ctl.State(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if v, there := state.VM(200); there && ok(v) {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// findChild returns the only child of a process.
func findChild(t *testing.T, parent int) int {
	t.Helper()
	lists, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", parent))
	if err != nil {
		t.Fatal(err)
	}
	var all []byte
	for _, name := range lists {
		raw, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, raw...)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(all)))
	if err != nil {
		t.Fatalf("children of %d: %q", parent, all)
	}
	return pid
}

// isAlive returns true if a process runs. A zombie does not run.
func isAlive(pid int) bool {
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(raw), ") ")
	return err == nil && !strings.HasPrefix(state, "Z") && !strings.HasPrefix(state, "X")
}

// TestDefaultsOfFlags checks the defaults of all flags of the program.
func TestDefaultsOfFlags(t *testing.T) {
	t.Parallel()
	defaults.Check(t, "flag pvesim", defaults.OfCommand(cli.New()))
}
